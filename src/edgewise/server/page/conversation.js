// A conversation: questions, each with the answers of those who were asked.
import { Answer } from "./answer.js";

export const MODES = ["pair", "edge", "cloud"];
const LOCAL = { edgewise: { cloud: "none" } };

// A question and its answers by mode.
export class Turn {
  constructor(prompt, { local = false } = {}) {
    Object.assign(this, { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), prompt, local, answers: {} });
    this.restored = false; // by a reload
  }

  get modes() {
    return MODES.filter((mode) => this.answers[mode]);
  }

  // What stands for the turn where `mode` was not asked.
  answerFor(mode) {
    return this.answers[mode]?.said ? this.answers[mode] : this.modes.map((one) => this.answers[one]).find((one) => one.said);
  }

  static from(kept) {
    const turn = new Turn(kept.prompt, kept);
    turn.restored = true;
    for (const mode of MODES) {
      if (kept.answers[mode]) turn.answers[mode] = Answer.from(kept.answers[mode]);
    }
    return turn;
  }
}

export class Conversation {
  turns = [];
  local = false; // once something was said, it stays so

  // What a request for `turn` sends: the turns before it, as `mode` answered them or as it was
  // answered, and its question. Marks travel with the messages, in later turns too.
  messages(mode, turn) {
    const sent = this.turns.slice(0, this.turns.indexOf(turn)).flatMap((one) => {
      const answer = one.answerFor(mode);
      const mark = one.local || answer?.local ? LOCAL : {};
      return answer ? [{ role: "user", content: one.prompt, ...mark }, { role: "assistant", content: answer.said, ...mark }] : [];
    });
    return [...sent, { role: "user", content: turn.prompt, ...(turn.local ? LOCAL : {}) }];
  }

  // Forgets `turn` and all that follows; where they stood.
  dropFrom(turn) {
    const place = this.turns.indexOf(turn);
    this.turns.length = place;
    return place;
  }

  static from(kept) {
    const conversation = new Conversation();
    conversation.local = kept.local;
    conversation.turns = kept.turns.map(Turn.from);
    return conversation;
  }
}
