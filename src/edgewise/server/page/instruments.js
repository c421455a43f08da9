// What is shown beside conversations and answers, by place: lists of components. Each is given the
// models of its place (conversation.js, answer.js) and reads no more than these and `state`.
import { Sent } from "./drawer.js";
import { Experiments } from "./experiments.js";
import { Ghosts } from "./ghost.js";
import { Meters } from "./meters.js";
import { Finish } from "./race.js";
import { Unplug } from "./unplug.js";

export const overConversation = []; // {conversation}: above the questions
export const underTurn = [Finish]; // {conversation, turn}: under a question's answers
export const underAnswer = [Unplug, Meters, Ghosts]; // {conversation, turn, answer}
export const aboutToken = []; // {conversation, answer, token, number}: in the token's panel
export const drawers = [Experiments, Sent]; // {conversation}: at the foot of the page
