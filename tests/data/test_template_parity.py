"""Jinja templates as jinja2 renders them in transformers: pieces of the language, and the chat templates that come with TRL."""

import json
import os
import pathlib
import subprocess

import pytest
import trl
from transformers.utils import chat_template_utils

ROOT = pathlib.Path(__file__).parents[2]
TOOL = ROOT / os.environ.get("TESSERA_BUILD", "build/release") / "tests/template_tool"
TEMPLATES = sorted((pathlib.Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))

VARIABLES = {
    "a": 1, "b": 2.5, "s": "  Hello Wörld\n", "l": [3, 1, 2], "t": True, "n": None, "e": "", "el": [],
    "d": {"x": 1, "y": {"z": [1, 2]}, "items": 5},
    "msgs": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo", "tool_calls": [{"name": "f", "arguments": {"q": "ä", "n": 1.5}}]}],
}

# What renders, and what must be refused.
LINES = r'''
{{ a + 1 }} {{ a / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 1e3 }} {{ 1_000 }}
{{ b }} {{ 1.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 123456789.125 }} {{ 0.1 + 0.2 }} {{ -7.5 // 2 }} {{ 7.5 % 2 }} {{ 2 ** -1 }}
{{ s | trim }}|{{ s.strip() }}|{{ s | upper }}|{{ s.lower() }}|{{ s | length }}|{{ s[2:5] }}|{{ s[::-1] }}|{{ s[-3] }}
{{ l }} {{ d }} {{ t }} {{ n }} {{ [1, 'a', "it's", none, True, 1.5, {'k': [1]}] }} {{ (1, 2) | list }}
{{ l | sort }} {{ l | sort(reverse=true) }} {{ l | first }} {{ l | last }} {{ l | join(', ') }} {{ l | sum }} {{ l | max }} {{ l | min }} {{ l[1:] }} {{ l[-1] }} {{ l | reverse | list }}
{{ d | tojson }} {{ d | tojson(indent=2) }} {{ "ä<'\"\n\t\x01" | tojson }} {{ "ä😀" | tojson(ensure_ascii=true) }} {{ {} | tojson(indent=2) }} {{ [[]] | tojson(indent=4) }} {{ d | tojson(sort_keys=true) }} {{ 1.0 | tojson }}
{{ undefined_thing }}|{{ undefined_thing is defined }}|{{ undefined_thing | default('x') }}|{{ e | default('x', true) }}|{{ n is none }}|{{ a is number }}|{{ s is string }}|{{ d is mapping }}|{{ l is iterable }}|{{ s is sequence }}|{{ t is boolean }}|{{ t is integer }}
{% for m in msgs %}{{ loop.index }}/{{ loop.length }} {{ m.role }}{% if not loop.last %}, {% endif %}{{ loop.previtem.role if loop.previtem }}{{ loop.nextitem.role if loop.nextitem is defined }}{{ loop.revindex }}{{ loop.cycle('x', 'y') }}{{ loop.changed(m.role) }}{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for k, v in d | items %}{{ k }}{% endfor %}{% for k,v in d|dictsort %}{{k}}{% endfor %}
{% for x in [] %}a{% else %}none{% endfor %}{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{% endfor %}
{% set x = 5 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}
{% set ns = namespace(found=false, n=0) %}{% for i in l %}{% set ns.n = ns.n + i %}{% if i == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }} {{ ns.n }}
{% macro f(x, y='d') %}[{{ x }}-{{ y }}]{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(y=3, x=4) }}{{ f() }}
{% macro m() %}{% for x in [1] %}{{ loop.index }}{{ a }}{% endfor %}{% endmacro %}{% for i in [7] %}{% set a = 3 %}{{ m() }}{% endfor %}
{% macro down(n) %}{{ n }}{% if n %}{{ down(n - 1) }}{% endif %}{% endmacro %}{{ down(5) }}
{% set text %}captured {{ a }}{% endset %}{{ text | upper }}{% filter upper %}abc{{ a }}{% endfilter %}{% set u | trim | upper %} q {% endset %}{{ u }}
{% for i in range(10) %}{% if i == 3 %}{% continue %}{% endif %}{% if i == 6 %}{% break %}{% endif %}{{ i }}{% endfor %}{{ range(3) | list }}{{ range(5, 0, -2) | list }}
{{ 'a' in 'abc' }} {{ 1 in l }} {{ 9 not in l }} {{ 'x' in d }} {{ not a == 2 }} {{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ a == 1 and b == 2.5 or n }} {{ n or 'z' }} {{ '' and 3 }} {{ 'q' in undefined_thing }}
{{ 'x' ~ 1 ~ none ~ true ~ u }} {{ 'ab' * 3 }} {{ [1] * 2 }} {{ [1] + [2] }} {{ 'a' 'b' }} {{ 2 * 'x' }}
{{ "a,b,c".split(",") }} {{ "a b  c".split() }} {{ "a,b,c".split(",", 1)[1] }} {{ "a b c".rsplit(" ", 1) }} {{ "a.b.c.d.e".rsplit(".", 2) }} {{ "x\ny\r\nz".splitlines() }} {{ "abc".startswith("ab") }} {{ "abc".endswith(("x","c")) }} {{ "aXb".replace("X", "-") }}
{{ "hello world's".title() }} {{ "hello (world)" | title }} {{ "HELLO" | capitalize }} {{ "xxabcx".strip("x") }} {{ "abc".find("c") }} {{ "abcabc".count("bc") }} {{ "abc".rfind("z") }}{{ ",".join(["a","b"]) }}{{ "ß".upper() }}{{ "12".isdigit() }}{{ "a b ".rstrip() }}{{ "ab".removeprefix("a") }}{{ "ab".removesuffix("b") }}
{{ msgs | map(attribute='role') | list }} {{ msgs | selectattr('role', 'equalto', 'user') | list | length }} {{ msgs | rejectattr('tool_calls') | map(attribute='content') | join }} {{ l | select('odd') | list }} {{ l | map('string') | join('+') }} {{ l | reject('>', 1) | list }} {{ msgs | selectattr('tool_calls', 'defined') | list | length }} {{ msgs | map(attribute='tool_calls.0.name', default='-') | list }} {{ ['a','A','b'] | unique | list }}
{{ "a\nb\n\nc" | indent }}|{{ "a\nb" | indent(2, true) }}|{{ "a\n\nb" | indent(2, false, true) }}
{{ '5' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 5.9 | int }} {{ '3.7' | int }} {{ '2.5' | float }} {{ 3 | string }} {{ -5 | abs }} {{ 2.567 | round(2) }} {{ 3 | float }} {{ "<a&'>" | e }}
{{ 'yes' if a else 'no' }} {{ 'yes' if n }} {{ ('yes' if n) is defined }} {{ 'a' if n else 'b' if e else 'c' }}
{{ d.x }} {{ d['x'] }} {{ d.y.z[0] }} {{ d['y']['z'][-1] }} {{ d.get('q') }} {{ d.get('q', 4) }} {{ d.nope is defined }} {{ d.keys() | list }} {{ d.values() | list }} {{ d['items'] }} {{ l.0 }} {{ l.index(2) }} {{ l.count(1) }}
{{ loop is defined }} {{ a is eq 1 }} {{ a is not none }} {{ 4 is divisibleby 2 }} {{ 4 is even }} {{ 'x' is in ['x'] }} {{ none is sameas none }} {{ 5 is gt 3 }} {{ 'a' is lower }} {{ true is sameas true }}
{{ 'a\tb\\n\u00e4\x41' }} {{ "it's" }} {{ 'say "x"' }} {{ ["it's", 'a"b', 'both\'"', 'new\nline'] }}
{{ {'a': 1, 'b': [1,2]}['b'][0] }} {{ {'a': 1}.a }} {{ {}.x is defined }} {{ [].x is defined }} {{ {'a': 1, 'a': 2} }}
{% set a, c = 1, 2 %}{{ a }}{{ c }} {% set (q, r) = (3, 4) %}{{ q }}{{ r }}{% for (x, y) in [(1, 2)] %}{{ x }}{{ y }}{% endfor %}
{{ 1 if a is defined and a is not none and a > 0 else 0 }} {{ (a + 1) * 2 }} {{ a|string + 'x' }} {{ 'a' ~ 'b' | upper }} {{ -a | abs }} {{ not n and t }}
{{ [1,2,3][1:2] }} {{ 'abc'[1:] }} {{ 'abc'[:-1] }} {{ 'äöü'[1] }} {{ l[5] is defined }} {{ 'abc'[7] }} {{ l[::2] }} {{ l[::-1] }} {{ l[-2:] }} {{ l[5:1] }}
{{ t is true }} {{ t is false }} {{ 1.5 is float }} {{ l is string }} {{ range is callable }} {{ "A" is upper }}
{{ ['b','a','C'] | sort }} {{ ['b','a','C'] | sort(case_sensitive=true) }} {{ msgs | sort(attribute='role') | map(attribute='role') | list }} {{ dict(a=1, b='x') }} {{ dict(a=1).a }} {{ [d, d] | map(attribute='x') | sum }} {{ [1,2]|sum(start=10) }}
{{ true }} {{ none }} {{ false or true }} {{ [] or 'e' }} {{ 0 == false }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ [1] < [2] }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1.0} }}
{% generation %}a{% endgeneration %}{% for m in msgs %}{% generation %}{{ m.content }}{% endgeneration %}ö{% endfor %}
{{ undefined_thing.attr }}
{{ undefined_thing + 1 }}
{{ undefined_thing() }}
{{ raise_exception('bad ' ~ a) }}
{{ l.append(4) }}
{{ 'a' + 1 }}
{{ a() }}
{% if %}
{% if a %}
{% endif %}
{{ a | nofilter }}
{{ a is notest }}
{% unknown %}
{{ 'unclosed
{{ a
{% for x in l %}
{% endfor %}
{{ 1 / 0 }}
{{ 'b' < 1 }}
{% for i in 5 %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{{ a b }}
{{ (a }}
{{ l[ }}
{{ range(1000000000) | length }}
{% macro f(x) %}{% endmacro %}{{ f(1, 2) }}
{% raw %}{{ x }}
{{ 1 ? 2 }}
'''.strip().split("\n")

BLOCKS = [
    "  {% if true %}\n    indented\n  {% endif %}\nx  {%- if true -%}  \n   y\n{%- endif %}\n\nz\n",
    "a\n{#- comment -#}   after {# c2 #}\nline2\n{{- ' a' -}}   \n b\n", "x\n  {%+ if true %}\n  keep\n  {%+ endif +%}\nend\n\n",
    "{% if true %}\r\nq\r\n{% endif %}\r\n", "  {# c #}\n  {{ a }}\n", "{{ a }}\n{% raw %}\n {{ x }} {% endraw %}\n z",
    "{% raw %}{{ not }} {% if %}{% endraw %} {%- raw -%} {{ x }} {%- endraw -%} q",
    "{% for m in msgs %}\n  {% if m.role == 'user' %}\n    {{ m.content }}\n  {% else %}\n    {% generation %}{{ m.content }}{% endgeneration %}\n\n  {% endif %}\n{% endfor %}\n",
    "{% set x = 1 %}  {% set y = 2 %}\n  {{ x }}{% if x %} {% endif %}\n{% if x %}\n\n\n{%- endif %}k",
    "{%- macro a(x) -%}\n  {{ x }}!\n{%- endmacro -%}\n{{ a(1) }} {{ a('z') }}\n", "", "\n", "\n\n", "{{ '}}' }}{{ '%}' }}{% if '%}' %}b{% endif %}",
    "{%- for m in msgs -%}\n    {%- if m['role'] == 'user' -%}\n        {{ '<|u|>' + m['content'] }}\n    {%- elif m['role'] == 'assistant' -%}\n"
    "        {{ '<|a|>' + m['content'] | trim }}\n    {%- else -%}\n        {{ raise_exception('x') }}\n    {%- endif -%}\n{%- endfor -%}\n",
]


def rendered(asked):
    """What the tool makes of [(template, variables)]: (text, [spans in characters]), or the error."""
    lines = "".join(json.dumps({"template": template, "variables": variables}) + "\n" for template, variables in asked)
    done = subprocess.run([TOOL], input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = []
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        if "error" in answer:
            answers.append(answer["error"])
            continue
        data = answer["text"].encode()
        answers.append((answer["text"], [tuple(len(data[:byte].decode()) for byte in span) for span in answer["generated"]]))
    return answers


def reference(template, messages, **others):
    """The same of transformers; None where it refuses."""
    try:
        texts, spans = chat_template_utils.render_jinja_template([messages], chat_template=template, return_assistant_tokens_mask=True, **others)
    except Exception:
        return None
    return texts[0], [tuple(span) for span in spans[0]]


@pytest.mark.parametrize("template", LINES + BLOCKS)
def test_pieces_of_the_language(template):
    want = reference(template, [], **VARIABLES)
    got, = rendered([(template, VARIABLES)])
    if want is None:
        assert isinstance(got, str) and "line 1 of the template" in got, got
    else:
        assert got == want


TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": 'Weather of a "city" <now>', "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "é"}, "days": {"type": "integer", "enum": [1, 2]}}, "required": ["city"]}}}]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Wie geht's?  \n"}
ANSWER = {"role": "assistant", "content": " Gut, danke.\n\nUnd dir? "}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\n42"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {
    "name": "get_weather", "arguments": {"city": "Köln", "days": 2, "f": 1.5, "b": True, "n": None}}}]}
RESULT = {"role": "tool", "name": "get_weather", "content": '{"t": 3}'}
CHATS = {
    "plain": [USER, ANSWER], "system": [SYSTEM, USER, ANSWER], "turns": [SYSTEM, USER, ANSWER, USER, ANSWER, USER],
    "tools": [SYSTEM, USER, CALL, RESULT, ANSWER], "thoughts": [USER, THOUGHT, USER, THOUGHT],
    "reasons": [USER, {"role": "assistant", "content": "ok", "reasoning_content": "because"}], "answer first": [ANSWER, USER], "nothing": [],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, ANSWER],
}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_chat_templates(path):
    template, tokens = path.read_text(), {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    asked, wanted = [], []
    for chat in CHATS.values():
        for tools in (None, TOOLS):
            for prompt in (False, True):
                wanted.append(reference(template, chat, tools=tools, add_generation_prompt=prompt, **tokens))
                messages = chat_template_utils._alias_reasoning_fields(chat_template_utils._plain_template_data(chat))
                asked.append((template, {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt, **tokens}))
    answers = rendered(asked)
    for (_, variables), want, got in zip(asked, wanted, answers, strict=True):
        assert got == want if want is not None else isinstance(got, str), variables
    assert any(want is not None for want in wanted)


def test_the_templates_are_of_twelve_families_at_least():
    families = {path.stem.split("_")[0].rstrip("0123456789") for path in TEMPLATES}
    assert len(families) >= 12, families


@pytest.mark.parametrize("template, what", [
    ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "more than ten million steps"),
    ("{{ 'x' * 999999999 }}", "too much memory"), ("{{ ('ab' * 9999) | join('x' * 999) }}", "too much memory"),
    ("{{ ('x' * 999).join('ab' * 9999) }}", "too much memory"), ("{{ ('\n' * 999999).splitlines() }}", "too much memory"),
    ("{{ ('x,' * 999999).split(',') | length }}", "too much memory"), ("{% set x = 'ab' * 9999 %}{{ [x] * 999 }}", "too much memory"),
    ("{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "far larger than what it is made of"),
    ("{% set ns = namespace(l=[]) %}{% for a in range(9999) %}{% set ns.l = ns.l + ['x' * 999 ~ a] %}{% endfor %}", "too much memory"), ("{{ 9223372036854775807 + 1 }}", "too large a number"),
    ("{{ 99999999999999999999 }}", "too large a number"), ("{{ " + "(" * 999 + "1" + ")" * 999 + " }}", "nested too deep"),
    ("{% if a %}" * 999 + "{% endif %}" * 999, "nested too deep"), ("{{ a" + " + a" * 9999 + " }}", "more than 300 operations"),
    ("{{ a" + "|string" * 9999 + " }}", "more than 300 operations"), ("{{ d" + ".x" * 9999 + " }}", "more than 300 operations"),
    ("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", "macros call each other too deep"), ("x" * (1 << 20 | 1), "larger than 1 MiB"),
    ("{% set ns = namespace() %}{% set ns.a = ns %}", "a namespace cannot be put into a namespace"), ("{{ 2 ** 999999999999 }}", "too large a number"),
], ids=range(20))
def test_what_a_template_asks_for_is_bounded(template, what):
    got, = rendered([(template, VARIABLES)])
    assert isinstance(got, str) and what in got, got
