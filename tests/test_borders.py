"""The borders that reviewers would otherwise have to remember. Who may import whom is in pyproject.toml."""

import ast
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

ROOT = Path(__file__).parent.parent
PACKAGES = ("protocol", "peer", "bootstrap")
SCHEMAS = sorted((ROOT / "protocol/schemas").glob("*.proto"))
FIELDS = ROOT / "tests/golden/fields.txt"

MODULES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if not path.stem.endswith(("_pb2", "_pb2_grpc"))
)

MOST_LINES = 400
LONGER: frozenset[str] = frozenset()  # paths that may be longer, each with its reason beside it


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# Generated code


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make proto` makes, in a folder of its own."""
    from grpc_tools import protoc

    out = tmp_path_factory.mktemp("proto")
    outputs = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    assert protoc.main(["protoc", f"-I{ROOT}", *outputs, *map(str, SCHEMAS)]) == 0
    return out / "protocol/schemas"


def test_generated_code_is_current(regenerated: Path) -> None:
    def texts(folder: Path) -> dict[str, str]:
        return {path.name: path.read_text() for path in folder.glob("*_pb2*.py*")}

    committed, fresh = texts(ROOT / "protocol/schemas"), texts(regenerated)
    stale = sorted(file for file in committed | fresh if committed.get(file) != fresh.get(file))
    assert not stale, f"run `make proto`: {', '.join(stale)}"


# Field numbers


def of_messages(messages: list[Descriptor]) -> Iterator[str]:
    for message in messages:
        yield from (of_field(message, field) for field in message.fields)
        yield from of_enums(list(message.enum_types))
        yield from of_messages(list(message.nested_types))


def of_field(message: Descriptor, field: FieldDescriptor) -> str:
    types = {
        value: key.removeprefix("TYPE_").lower() for key, value in vars(FieldDescriptor).items() if "TYPE_" in key[:5]
    }
    named = field.message_type or field.enum_type
    kind = named.full_name if named else types[field.type]
    return f"{message.full_name} {field.number} {field.name}: {'repeated ' * field.is_repeated}{kind}"


def of_enums(enums: list[EnumDescriptor]) -> Iterator[str]:
    for enum in enums:
        yield from (f"{enum.full_name} {value.number} {value.name}" for value in enum.values)


def fields_in_use() -> set[str]:
    """One line a field: its message, number, name and type."""
    files = [importlib.import_module(f"protocol.schemas.{path.stem}_pb2").DESCRIPTOR for path in SCHEMAS]
    return {
        line
        for file in files
        for lines in (
            of_messages(list(file.message_types_by_name.values())),
            of_enums(list(file.enum_types_by_name.values())),
        )
        for line in lines
    }


def fields_ever() -> list[str]:
    return [line for line in FIELDS.read_text().splitlines() if line and not line.startswith("#")]


def test_every_field_in_use_is_in_the_table() -> None:
    missing = sorted(fields_in_use() - set(fields_ever()))
    assert not missing, f"new fields, or old ones changed; a new one is added to {name(FIELDS)}:\n" + "\n".join(missing)


def test_a_field_number_is_never_used_twice() -> None:
    numbers = [tuple(line.split()[:2]) for line in fields_ever()]
    twice = sorted({" ".join(number) for number in numbers if numbers.count(number) > 1})
    assert not twice, f"take a number that {name(FIELDS)} has not: {', '.join(twice)}"


# Modules


def test_every_module_can_be_read_in_one_sitting() -> None:
    lines = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    long = {path for path, count in lines.items() if count > MOST_LINES}
    assert long == LONGER, f"more than {MOST_LINES} lines, or an exception no longer needed: {long ^ LONGER}"


def test_a_module_is_named_for_what_lives_in_it() -> None:
    nameless = {"util", "utils", "helper", "helpers", "common", "misc", "manager"}
    folders = {parent for path in MODULES for parent in path.relative_to(ROOT).parents}
    found = [name(path) for path in MODULES if path.stem in nameless]
    assert not found + [str(folder) for folder in folders if folder.name in nameless]


def types_named(tree: ast.Module) -> Iterator[str]:
    """The classes and type aliases of a module, but its type variables."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=named):
                yield named
            case ast.Assign(targets=[ast.Name(id=named)], value=value) if named[0].isupper() and not named.isupper():
                if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeVar"):
                    yield named


def test_a_type_name_has_one_meaning() -> None:
    where: dict[str, list[str]] = {}
    for path in MODULES:
        for named in types_named(ast.parse(path.read_text(encoding="utf-8"))):
            where.setdefault(named, []).append(name(path))
    riddles = {named: paths for named, paths in where.items() if len(paths) > 1}
    assert not riddles, "who greps for it finds several things: say in each name which it is"


def test_a_module_name_has_one_meaning() -> None:
    """Commands are named as users type them: `hetpeer status` reads a status. All architectures have the same
    modules."""
    shared = {"cli", "architectures"}
    named = Counter(path.stem for path in MODULES if not shared & {*path.parts} and not path.stem.startswith("__"))
    assert {name for name, modules in named.items() if modules > 1} == {"node"}  # a peer's and the operator's


def test_the_check_of_type_names_sees_classes_and_aliases() -> None:
    module = ast.parse("class Work: ...\nPair = tuple[int, int]\nItem = TypeVar('Item')\nMOST = 3")
    assert list(types_named(module)) == ["Work", "Pair"]


# What peers send is never run

FORBIDDEN_IMPORTS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {
    "torch.load",
    "torch.save",
    "torch.package",
    "torch.jit.load",
    "builtins.eval",
    "builtins.exec",
}
UNSAFE_ARGUMENTS = {("allow_pickle", "True"), ("weights_only", "False"), ("shell", "True")}


def runs_bytes(tree: ast.AST) -> Iterator[str]:
    """Each way in `tree` to turn bytes into running code, as `line: what`."""
    for node in ast.walk(tree):
        for dotted in dotted_names(node):
            imported = isinstance(node, ast.Import | ast.ImportFrom) and dotted.split(".")[0] in FORBIDDEN_IMPORTS
            called = isinstance(node, ast.Call) and dotted in FORBIDDEN_CALLS
            if imported or called or dotted in FORBIDDEN_ATTRIBUTES:
                yield f"{getattr(node, 'lineno', 0)}: {dotted}"
        if isinstance(node, ast.keyword) and (node.arg, ast.unparse(node.value)) in UNSAFE_ARGUMENTS:
            yield f"{node.value.lineno}: {ast.unparse(node)}"


def dotted_names(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names):
            return [f"{module}.{alias.name}" for alias in names]
        case ast.Call(func=ast.Name(id=called)):
            return [called]
        case ast.Attribute():
            return [ast.unparse(node)]
    return []


def test_nothing_unpickles_or_evaluates() -> None:
    found = [
        f"{name(path)}:{what}" for path in MODULES for what in runs_bytes(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(file)",
        "from torch import load",
        "eval(text)",
        "numpy.load(file, allow_pickle=True)",
    ],
)
def test_the_check_sees_what_it_forbids(line: str) -> None:
    assert list(runs_bytes(ast.parse(line)))


def test_the_check_lets_the_rest_pass() -> None:
    assert not list(runs_bytes(ast.parse("model.eval()\nimport re\nre.compile('x')\nsafetensors.torch.load(data)")))


# No port is open to who has no certificate, and no call goes out without one

INSECURE = ("insecure_channel", "add_insecure_port", "insecure_server_credentials", "insecure_channel_credentials")


def names_insecure(tree: ast.AST) -> Iterator[str]:
    """Each way in `tree` to a channel or port without TLS, as `line: what`: by attribute, import or text."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=found) | ast.Name(id=found) | ast.Constant(value=str(found)):
                named = [found]
            case ast.ImportFrom(names=names):
                named = [alias.name for alias in names]
            case _:
                named = []
        yield from (f"{node.lineno}: {each}" for each in named if each in INSECURE)  # type: ignore[attr-defined]


def test_every_channel_and_port_is_tls() -> None:
    found = [
        f"{name(path)}:{what}"
        for path in MODULES
        for what in names_insecure(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "grpc.aio.insecure_channel(address)",
        "server.add_insecure_port(address)",
        "from grpc.aio import insecure_channel",
        "getattr(server, 'add_insecure_port')(address)",
        "server.add_secure_port(address, grpc.insecure_server_credentials())",
    ],
)
def test_the_check_sees_what_is_not_tls(line: str) -> None:
    assert list(names_insecure(ast.parse(line)))


# Every task has a parent

PARENTLESS = ("create_task", "ensure_future")
MAY_START_TASKS = {"protocol/net/tasks.py"}  # where the other parent is made


def bare_tasks(tree: ast.AST) -> Iterator[str]:
    """Each way in `tree` to a task without a parent, as `line: what`. A task group that was made elsewhere is known by
    its name, `tasks`."""
    groups = {"tasks"}
    for node in ast.walk(tree):
        match node:
            case ast.withitem(context_expr=ast.Call(func=made), optional_vars=ast.Name(id=bound)):
                groups |= {bound} if ast.unparse(made) == "asyncio.TaskGroup" else set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="create_task", value=ast.Name(id=parent) | ast.Attribute(attr=parent)):
                found = parent not in groups
            case ast.Attribute(attr=started) | ast.Name(id=started):
                found = started in PARENTLESS
            case ast.ImportFrom(names=names):
                found = any(alias.name in PARENTLESS for alias in names)
            case ast.Call(func=called):
                found = ast.unparse(called) == "asyncio.Task"
            case _:
                found = False
        if found:
            yield f"{node.lineno}: {ast.unparse(node)}"  # type: ignore[attr-defined]


def test_every_task_has_a_parent() -> None:
    found = [
        f"{name(path)}:{what}"
        for path in MODULES
        if name(path) not in MAY_START_TASKS
        for what in bare_tasks(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, f"start it in an asyncio.TaskGroup, or as one of the Children of protocol/net/tasks.py: {found}"


@pytest.mark.parametrize(
    "line",
    [
        "asyncio.create_task(work())",
        "asyncio.ensure_future(work())",
        "from asyncio import create_task",
        "from asyncio import ensure_future as start",
        "start = asyncio.create_task",
        "loop.create_task(work())",
        "asyncio.get_running_loop().create_task(work())",
        "asyncio.Task(work())",
        "create_task(work())",
        "tasks.ensure_future(work())",
    ],
)
def test_the_check_sees_a_task_without_a_parent(line: str) -> None:
    assert list(bare_tasks(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "async def f():\n    async with asyncio.TaskGroup() as both:\n        both.create_task(work())",
        "self.here.tasks.create_task(work())",
        "children.spawn(work())",
        "task: asyncio.Task[None]",
        "asyncio.gather(work())",
    ],
)
def test_the_check_lets_a_task_with_a_parent_pass(line: str) -> None:
    assert not list(bare_tasks(ast.parse(line)))


# The swarm's objects keep their own state


def state_from_outside(source: str) -> list[str]:
    """The lines that set an attribute of another object than `self`, and those that assert that something is there."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        targets: list[ast.expr] = []
        match node:
            case ast.Assign():
                targets = node.targets
            case ast.AugAssign() | ast.AnnAssign():
                targets = [node.target]
            case ast.Assert():
                lines.append(f"{node.lineno}: `assert`: say it in a type, or raise")
        for target in targets:
            for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(one, ast.Attribute) and ast.unparse(one.value) != "self":
                    lines.append(f"{one.lineno}: sets {ast.unparse(one)}: give its owner a method")
    return lines


def test_no_object_of_the_swarm_is_changed_from_outside() -> None:
    found = {name(path): state_from_outside(path.read_text(encoding="utf-8")) for path in MODULES}
    assert {path: lines for path, lines in found.items() if lines and path.startswith("peer/swarm/")} == {}


@pytest.mark.parametrize("line", ["a.b = 1", "self.a.b = 1", "a.b += 1", "c, a[0].b = 1, 2", "assert a is not None"])
def test_the_check_sees_a_change_from_outside(line: str) -> None:
    assert state_from_outside(line)


@pytest.mark.parametrize("line", ["self.a = 1", "self.a, b = 1, 2", "a[b] = 1", "a.b(1)", "a = b.c"])
def test_the_check_lets_an_object_keep_its_own_state(line: str) -> None:
    assert not state_from_outside(line)


# The command line answers at once


NO_DAEMONS_TIME = ("peer/lab/", "peer/compute/", "peer/diagnosis/", "peer/testnet/", "bootstrap/data/")
"""What measures, or runs beside daemons, has the machine's own time."""

CLOCKS = ("time.time", "time.monotonic", "time.time_ns")


def test_a_daemon_reads_its_clocks_in_one_place() -> None:
    read = []
    for path in (path for package in ("protocol", "peer", "bootstrap") for path in Path(package).rglob("*.py")):
        if not path.as_posix().startswith((*NO_DAEMONS_TIME, "protocol/clock.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and ast.unparse(node) in CLOCKS:
                    read.append(f"{path}:{node.lineno}: use protocol.clock")
    assert read == []


def test_help_needs_nothing_heavy() -> None:
    heavy = ("torch", "grpc", "hivemind", "matplotlib", "numpy", "numba", "tokenizers")
    program = f"import sys, peer.cli.__main__; print(*(m for m in {heavy} if m in sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
