"""Renders chats for models/data/chat_template.cpp, which contains this program. It does what transformers 5 does in
utils/chat_template_utils.py. The first line of stdin has the template, its variables and the limits; each further line
is a row of data. The answer to each line is a line of JSON. For Python 3.10 and jinja2 3.1.
"""
import datetime, json, os, re, resource, signal, sys

try:
    import jinja2, jinja2.debug, jinja2.ext, jinja2.sandbox, pprint
except ImportError:
    if sys.argv[1:] == ["again"] or not os.path.exists("/usr/bin/python3"):
        sys.exit(print('{"missing": "jinja2"}'))
    sys.stdout.flush()
    os.execv("/usr/bin/python3", ["python3", *sys.orig_argv[1:], "again"])


class Marks(jinja2.ext.Extension):
    """{% generation %} and {% endgeneration %}: what an assistant writes."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller):
        text = caller()
        marks.append((written, written + len(text)))
        return text


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **attributes):
        for name in dict(*args[1:], **attributes):
            check_name(name)
        jinja2.utils.Namespace.__init__(*args, **attributes)

    def __setitem__(self, name, value):
        check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


def check_name(name):
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"namespace: {name!r} begins with _")


class Dictionary:
    def __call__(self, *args, **members):
        return dict(*args, **members)

    def fromkeys(self, *args):
        return dict.fromkeys(*args)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def compiled(text):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Marks, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals.update(
        raise_exception=raise_exception, dict=Dictionary(), namespace=Namespace,
        strftime_now=lambda form: datetime.datetime.fromisoformat(task["date"]).strftime(form))
    return environment.from_string(text)


def limit(resource_, most):
    hard = resource.getrlimit(resource_)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource_, (most, most))


def start_clock(messages=()):
    signal.setitimer(signal.ITIMER_PROF, task["seconds"] + 0.02 * len(messages))  # SIGPROF ends this process


def template_now():
    """The template, and whether it has {% generation %}."""
    return templates["template" if variables["tools"] is None else "tool_template"]


def text_of(messages, prompts=False):
    global written
    marks.clear()
    written, blocks = 0, []
    for block in template_now()[0].generate(messages=messages, add_generation_prompt=prompts, **variables):
        blocks.append(block)
        written += len(block)
        if written > task["characters"]:
            raise OverflowError(f"the text has more than {task['characters']} characters")
    return "".join(blocks)


def text_or_none(messages, prompts=False):
    try:
        return text_of(messages, prompts)
    except (jinja2.exceptions.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None


def longest(most, holds):
    """The largest number up to `most` for which `holds` is true. It must then be true for all smaller ones."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if holds(middle) else (least, middle - 1)
    return least


def changed_part(text, instead):
    """Begin and end of the part of `text` that differs in `instead`."""
    shorter = min(len(text), len(instead))
    begin = longest(shorter, lambda size: text.startswith(instead[:size]))
    return begin, len(text) - longest(shorter - begin, lambda size: text.endswith(instead[len(instead) - size:]))


def added_behind(prompt, answered):
    """The text between a prompt and the content of its answer, which is `other`: a space, empty thoughts. None: the
    answered text does not begin with the prompt.
    """
    if prompt is None or answered is None or not answered.startswith(prompt) or other not in answered[len(prompt):]:
        return None
    return answered[len(prompt):answered.index(other, len(prompt))]


def changes_of(message):
    yield {"role": message["role"], "content": other}
    if calls := message.get("tool_calls"):
        call = {**calls[0], "function": {**calls[0]["function"], "name": other}} if "function" in calls[0] else {
            **calls[0], "name": other}
        yield {key: value for key, value in message.items() if key not in thoughts} | {"tool_calls": [call, *calls[1:]]}


def span_of(messages, i, text):
    """Begin and end of an assistant's message; both 0: later messages change its text."""
    until = text if i + 1 == len(messages) else text_or_none(messages[:i + 1])
    if until is None:
        return 0, 0
    prompt = text_or_none(messages[:i], prompts=True)
    if prompt is not None and until.startswith(prompt) and text.startswith(until):
        return len(prompt), len(until)
    # The message's own text is the part that changes with its content, or with the name of a function that it calls,
    # because some templates refuse a result that does not follow a call.
    for message in changes_of(messages[i]):
        changed = [*messages[:i], message]
        until_changed, text_changed = text_or_none(changed), text_or_none(changed + messages[i + 1:])
        if None not in (until_changed, text_changed) and until_changed != until:
            break
    else:
        return 0, 0
    begin, end = changed_part(until, until_changed)
    begin_now, end_now = changed_part(text, text_changed)
    if until[begin:end].strip() != text[begin_now:end_now].strip() or not text.startswith(until[end:], end_now):
        return 0, 0
    added = added_behind(prompt, until_changed)
    if added is None:  # the answered text does not begin with the prompt: use the shortest chat
        shortest = [{"role": "user", "content": "x"}, message]
        added = added_behind(text_or_none(shortest[:1], prompts=True), text_or_none(shortest)) or ""
    kept = len(added) if text.endswith(added, 0, begin_now) else 0
    return begin_now - kept, end_now + len(until) - end


def answer(line):
    row, messages = json.loads(line), []
    start_clock(row["messages"])  # one limit for all texts of the row
    for message in row["messages"]:
        message = {key: value for key, value in message.items() if value is not None}
        if thought := [message[key] for key in thoughts if key in message]:
            message = {"thinking": thought[0], **message, "reasoning_content": thought[0]}
        messages.append(message)
    tools = row.get("tools")
    variables.clear()
    variables.update(task["variables"], **(row.get("chat_template_kwargs") or {}))
    variables.update(tools=json.loads(tools) if isinstance(tools, str) else tools, documents=row.get("documents"))
    text = text_of(messages, task["prompts"])
    size, spans = len(text.encode()), [(*mark, -1) for mark in marks]
    if not task["prompts"] and not template_now()[1]:
        answers = [i for i, message in enumerate(messages) if message.get("role") == "assistant"
                   or any(message.get(key) for key in ("weight", "train", "training"))]
        spans = [(*span_of(messages, i, text), i) for i in answers]
    if size > len(text):
        spans = [(len(text[:begin].encode()), len(text[:end].encode()), i) for begin, end, i in spans]
    return {"text": text, "spans": spans}


def attempt(work, *arguments):
    """Prints the result, or why there is none, on a line."""
    try:
        start_clock()
        result = work(*arguments)
    except MemoryError:
        result = {"error": f"it needs more than {task['bytes'] >> 20} MiB of memory", "line": None}
    except Exception as error:
        line, trace = getattr(error, "lineno", None), error.__traceback__
        while trace:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == "<template>" else line
            trace = trace.tb_next
        name = "" if type(error) is jinja2.exceptions.TemplateError else type(error).__name__ + ": "
        result = {"error": (name + str(error))[:1000], "line": line}
    print(json.dumps(result), flush=True)


def compile_it():
    for kind in ("template", "tool_template"):
        text = task[kind] or task["template"]
        templates[kind] = compiled(text), re.search(r"\{\%-?\s*generation\s*-?\%\}", text) is not None
    return {}


signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles it
signal.signal(signal.SIGPROF, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
task = json.loads(sys.stdin.buffer.readline())
marks, variables, templates, written = [], {}, {}, 0
thoughts = ("reasoning_content", "thinking", "reasoning")
other = "\ue000"  # a content that no message has: a character of private use
compiled("{{ '\\n' | pprint | tojson }}").render()  # imports the rest while files can be opened
for kind, most in ((resource.RLIMIT_AS, task["bytes"]), (resource.RLIMIT_NOFILE, 0), (resource.RLIMIT_CORE, 0)):
    limit(kind, most)
attempt(compile_it)
for line in sys.stdin.buffer:
    attempt(answer, line)
