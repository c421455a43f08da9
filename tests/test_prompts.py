"""Chat templates run in a sandbox; what they cannot do is one sentence."""

import time

import pytest

from edgewise.errors import ModelError
from edgewise.prompts import MAX_TEMPLATE, Message, prompt_ids, render
from edgewise.testing.scripted_edge import ByteTokenizer

TURNS = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yes?")]
PLAIN = (
    "{%- for m in messages %}<{{ m.role }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Marked(ByteTokenizer):
    """Has special tokens."""

    def special_text(self, name: str) -> str:
        return {"bos": "<s>", "eos": "</s>"}[name]


def templated(template: str | None) -> ByteTokenizer:
    tokenizer = Marked()
    tokenizer.chat_template = template
    return tokenizer


def test_a_template_sees_messages_and_the_generation_prompt() -> None:
    expected = "<system>Be brief.\n<user>Hi\n<assistant>Yes?\n<assistant>"
    assert render(templated(PLAIN), TURNS) == expected
    assert bytes(prompt_ids(templated(PLAIN), TURNS)) == expected.encode()


def test_a_template_sees_special_tokens_and_the_helpers_of_published_templates() -> None:
    template = (
        "{{ bos_token }}{{ strftime_now('%Y') }}{{ messages[1].content | tojson }}"
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ loop.index }}"
        "{% break %}{% endfor %}{{ eos_token }}"
    )
    expected = f'<s>{time.strftime("%Y")}"é <&>"2</s>'
    assert render(templated(template), [TURNS[0], Message("user", "é <&>")]) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ ''['__class__'].__mro__ }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ (['']|map(attribute='__class__')|first).__mro__ }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ strftime_now.__code__.co_consts }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='user') }}",
        "{% include '/etc/hostname' %}",
        "{% import 'os' as os %}",
        "{{ range(10 ** 9) | list }}",
        "{{ 'a' * 10 ** 18 }}",
        "{{ lipsum(n=10 ** 9) }}",
        "{% for _ in range(10 ** 12) %}{% endfor %}",
        "{{ undefined.attribute }}",
        "{{ 1 / 0 }}",
        "{{ messages[9].content + 1 }}",
        "{{ raise_exception | tojson }}",
        "{% for %}",
        "{{ unclosed",
    ],
)
def test_what_a_template_must_not_do_is_refused(template: str) -> None:
    with pytest.raises(ModelError, match="chat template"):
        render(templated(template), TURNS)


def test_a_template_may_refuse_a_conversation_in_its_own_words() -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('No system!') }}{% endif %}"
    with pytest.raises(ModelError) as caught:
        render(templated(template), TURNS)
    assert "(No system!)" in str(caught.value)
    assert render(templated(template), TURNS[1:]) == ""


def test_an_oversized_template_is_not_compiled() -> None:
    assert render(templated("x" * MAX_TEMPLATE), TURNS) == "x" * MAX_TEMPLATE
    with pytest.raises(ModelError, match=f"has {MAX_TEMPLATE + 1} characters"):
        render(templated("x" * (MAX_TEMPLATE + 1)), TURNS)
