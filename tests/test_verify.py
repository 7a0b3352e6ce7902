"""The command that recomputes everything: that it passes, what it writes, and that it can fail."""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import reference  # noqa: F401  (one thread for torch)
import torch

from minigpt import device, verify
from minigpt.verify import EXACT, MECHANISMS, Check, Place

CPU = torch.device("cpu")
STAGES = ["norm1", "attention", "residual1", "norm2", "hidden", "ffn", "output"]


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    return verify.run(CPU)


def failures(checks: list[Check]) -> list[str]:
    return [check.name for check in checks if not check.passed]


# ---------------------------------------------------------------- the checks


def test_every_check_passes(checks: list[Check]) -> None:
    assert failures(checks) == []
    assert {check.dtype for check in checks} == {"float64", "float32"}


def test_names_are_unique_and_start_with_a_fact(checks: list[Check]) -> None:
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.match(r"[NPRFASKO]\d+ \S", name)] == []
    facts = {name.split()[0] for name in names}
    assert facts >= {f"N{i}" for i in range(1, 9)} | {f"F{i}" for i in range(1, 5)} | {
        f"K{i}" for i in range(1, 6)
    }


def test_what_ends_in_wrong_must_exceed_its_bound(checks: list[Check]) -> None:
    assert [check.wrong for check in checks] == [check.name.endswith("(wrong)") for check in checks]
    assert all(check.error > check.bound > 0 for check in checks if check.wrong)


def test_every_mechanism_is_listed() -> None:
    functions = [value for name, value in vars(verify).items() if re.match(r"[a-z]\d+_", name)]
    assert functions and set(functions) == set(MECHANISMS)
    assert len(MECHANISMS) == len(set(MECHANISMS))


def test_float32_passes_where_there_is_no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "widest_float", lambda where: torch.float32)
    narrow = verify.run(CPU)
    assert failures(narrow) == []
    assert sum(check.dtype == "float32" for check in narrow) > 30
    assert max(check.error for check in narrow if check.dtype == "float32" and not check.wrong) > 1e-9


@pytest.mark.parametrize("error", [math.nan, math.inf, 1e-11])
def test_a_large_or_missing_error_fails(error: float) -> None:
    assert not Check("N1 x", error, 1e-12).passed
    assert "FAIL" in str(Check("N1 x", error, 1e-12))
    assert not Check("N1 x (wrong)", math.nan, 1e-12, wrong=True).passed
    assert Check("N1 x (wrong)", 1e-11, 1e-12, wrong=True).passed
    assert Check("N1 x", 0.0, EXACT).passed
    assert not Check("N1 x (wrong)", 0.0, EXACT, wrong=True).passed


def test_errors_are_measured_as_they_should_be() -> None:
    assert verify.error([1, 2.5], np.array([1.0, 2.0])) == 0.5
    assert verify.error(torch.tensor([1.0]), [3]) == 2
    assert verify.error([[1.0, 2.0]], [1.0, 2.0]) == math.inf  # never broadcast
    assert math.isnan(verify.error([math.nan, 5], [0, 0]))
    assert math.isnan(verify.worst([1.0, math.nan, 2.0]))
    assert verify.record_error({"a": [1]}, {"b": [1]}) == math.inf
    assert verify.record_error({"a": [1], "b": [3]}, {"a": [1], "b": [1]}) == 2
    assert verify.let_through(float, [("1",), ("x",), ("2",)]) == 2


def test_finite_differences_find_a_gradient_and_its_absence() -> None:
    at = {"a": np.array([1.0, 2.0]), "b": np.array([[3.0]])}

    def loss(at: verify.Arrays) -> float:
        return float((at["a"] ** 3).sum() + at["b"].sum() * at["a"][0])

    right = {"a": np.array([3.0 + 3.0, 12.0]), "b": np.array([[1.0]])}
    assert verify.slope_error(loss, at, right) < verify.SLOPE
    assert verify.slope_error(loss, at, {**right, "b": np.array([[1.1]])}) > 1e-3


def test_a_mechanism_that_raises_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def k9_broken(place: Place) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(verify, "MECHANISMS", [k9_broken, verify.p3_input])
    got = verify.run(CPU)
    assert failures(got) == ["K9 broken raised RuntimeError: no such kernel"]
    assert len(got) == 3
    assert json.loads(verify.to_json(got, CPU))["checks"][0]["error"] is None


def test_torch_is_left_as_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    seen = []
    try:
        torch.set_float32_matmul_precision("high")
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        with pytest.MonkeyPatch.context() as patch:
            probe = lambda place: iter([seen.append(torch.get_float32_matmul_precision())] * 0)  # noqa: E731
            patch.setattr(verify, "MECHANISMS", [probe, verify.a8_prefix])
            verify.run(CPU)
        assert seen == ["highest"]
        assert torch.equal(torch.rand(3), expected)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


# ---------------------------------------------------------------- mistakes

# module, what stands there, what a mistake would put there, a fact whose check must fail
MISTAKES = [
    ("array", "eps: float = 1e-5", "eps: float = 1e-6", "N2"),
    ("scalar", "eps: float = 1e-5", "eps: float = 1e-6", "N2"),
    ("model", "eps: float = 1e-5", "eps: float = 1e-6", "N2"),
    ("array", "np.sqrt(var + eps)", "(np.sqrt(var) + eps)", "N1"),
    (
        "array",
        "mean(axis=-1, keepdims=True)  # [..., 1], denominator C",
        "sum(axis=-1, keepdims=True) / (x.shape[-1] - 1)",
        "N1",
    ),
    ("scalar", "for value in x) / C", "for value in x) / (C - 1)", "N1"),
    (
        "array",
        "    mu = x.mean(axis=-1, keepdims=True)  # [..., 1]",
        "    mu = x.mean(axis=-2 if x.ndim == 3 else -1, keepdims=True)",
        "N3",
    ),
    ("model", "torch.zeros(n_embd)) if bias else None", "torch.zeros(n_embd))", "N6"),
    ("array", "(d_hat - through_mean - through_var)", "(d_hat - through_mean)", "N7"),
    ("array", "(d_hat - through_mean - through_var)", "d_hat", "N7"),
    ("array", "(dy * x_hat).sum", "(dy * x).sum", "N7"),
    ("array", '    _shape("update", update, x.shape, "exactly the shape of x")\n', "", "R2"),
    ("model", "if x.shape != update.shape:", "if x.shape[-1] != update.shape[-1]:", "R2"),
    ("array", "np.maximum(x, 0)", "np.abs(x)", "F1"),
    ("scalar", "return x if x > 0 else 0.0", "return x", "F1"),
    ("array", "linear(hidden, w2, b2), hidden", "linear(hidden, w2), hidden", "F2"),
    ("array", "0.044715", "0.0447", "F4"),
    ("model", '"gelu": F.gelu,', '"gelu": lambda x: F.gelu(x, approximate="tanh"),', "F4"),
    ("array", "np.tri(n_query, n_key, n_key - n_query", "np.tri(n_query, n_key, n_key - n_query + 1", "K2"),
    ("array", "np.tri(n_query, n_key, n_key - n_query", "np.tri(n_query, n_key, 0", "A6"),
    ("scalar", "visible = j <= i or", "visible = j <= i + 1 or", "K2"),
    ("model", ".tril().view", ".tril(1).view", "A8"),
    ("model", "is_causal=True", "is_causal=False", "A8"),
    ("model", "tril(T_k - T_q)", "tril()", "A6"),
    ("model", "y.masked_fill(~readable, 0.0)", "y", "A6"),
    ("model", "mask = mask | ~readable", "mask = mask", "A6"),
    ("model", "persistent=False", "persistent=True", "A7"),
    (
        "array",
        "/ math.sqrt(q.shape[-1])",
        "/ math.sqrt(q.shape[-1] * (q.shape[-3] if q.ndim > 2 else 1))",
        "K2",
    ),
    ("scalar", "/ math.sqrt(d)", "/ d", "A2"),
    ("model", "/ math.sqrt(q.shape[-1])", "/ math.sqrt(q.shape[-1] * q.shape[1])", "S3"),
    ("array", "powers / np.where(total == 0, 1, total)", "powers", "A6"),
    (
        "array",
        "    x = x.swapaxes(-3, -2)  # [..., T, H, d]\n"
        "    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])",
        "    return x.reshape(*x.shape[:-3], x.shape[-2], -1)",
        "K2",
    ),
    ("model", "y.transpose(1, 2).reshape(B, T, C)", "y.reshape(B, T, C)", "K2"),
    ("array", "residual(residual1, ffn)", "residual(x, ffn)", "K2"),
    (
        "array",
        'layer_norm(residual1, weights["gamma2"], weights["beta2"], eps)',
        'layer_norm(residual1, weights["gamma1"], weights["beta1"], eps)',
        "K4",
    ),
    ("model", "residual(x, self.mlp(self.ln_2(x)))", "residual(x, self.mlp(self.ln_1(x)))", "K4"),
    ("model", "x = self.ln_1(residual(x, self.attn(x)))", "x = residual(x, self.attn(self.ln_1(x)))", "O1"),
    ("model", 'tap(self.mlp.c_proj, "hidden", None)', 'tap(self.mlp.c_proj, None, "hidden")', "K3"),
    ("example", "X = [[1.0, 0.0], [0.0, 2.0]", "X = [[1.0, 0.0], [0.0, 1.0]", "P3"),
    ("example", '"w_o": [[1.0, 1.0], [1.0, -1.0]]', '"w_o": [[1.0, 1.0], [-1.0, 1.0]]', "K2"),
]


@pytest.mark.parametrize(
    ("module", "right", "mistake", "fact"), MISTAKES, ids=[f"{m}: {b[:50]}" for m, _, b, _ in MISTAKES]
)
def test_a_mistake_is_caught(
    monkeypatch: pytest.MonkeyPatch, module: str, right: str, mistake: str, fact: str
) -> None:
    original = getattr(verify, module)
    source = Path(original.__file__).read_text(encoding="utf-8")
    assert right in source, "the fragment to replace is gone"
    altered = types.ModuleType(original.__name__)
    exec(compile(source.replace(right, mistake), original.__file__, "exec"), altered.__dict__)
    monkeypatch.setattr(verify, module, altered)
    facts = {name.split()[0] for name in failures(verify.run(CPU))}
    assert fact in facts, f"failed: {sorted(facts)}"


# ---------------------------------------------------------------- the command


def no_work(where: torch.device) -> list[Check]:
    raise AssertionError("the work started")


def test_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")
    assert verify.main(["--device", "cpu", "--json", str(path)]) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]
    record = json.loads(path.read_text(encoding="utf-8"))
    assert set(record) == {"checks", "device", "versions", "stages"}
    assert record["device"] == "cpu"
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["numpy"] == np.__version__
    assert all(set(row) == {"name", "error", "bound", "passed", "dtype"} for row in record["checks"])
    assert all(row["passed"] is True and isinstance(row["error"], int | float) for row in record["checks"])
    assert list(record["stages"]) == STAGES
    printed = [[1.999980, 2.999940], [0.999912, 1.476742], [2.999964, 3.746396]]
    np.testing.assert_allclose(record["stages"]["output"], printed, rtol=0, atol=5e-7)
    assert np.shape(record["stages"]["hidden"]) == (3, 3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(record["checks"]) + 1
    for line, row in zip(lines, record["checks"], strict=False):
        assert line.startswith("ok ") and row["name"] in line and row["dtype"] in line
        assert f"{row['error']:.1e}" in line and f"{row['bound']:.1e}" in line
    assert lines[-1] == f"{len(record['checks'])} of {len(record['checks'])} checks passed on cpu"


@pytest.mark.parametrize("error", [2.0, math.nan])
def test_a_failed_check_makes_exit_code_1_and_is_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: float
) -> None:
    monkeypatch.setattr(
        verify, "MECHANISMS", [lambda place: [Check("N1 x", error, 1.0), Check("N1 y", 1.0, 1.0)]]
    )
    path = tmp_path / "record.json"
    assert verify.main(["--device", "cpu", "--json", str(path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("FAIL  N1 x") and "1 of 2 checks passed on cpu" in out
    rows = json.loads(path.read_text(encoding="utf-8"))["checks"]
    assert [row["passed"] for row in rows] == [False, True]
    assert rows[0]["error"] == (None if math.isnan(error) else error)


def test_a_device_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device, "available", lambda: ["cpu"])
    monkeypatch.setattr(verify, "run", no_work)
    for name in ("cuda", "mps", "abacus"):
        with pytest.raises(SystemExit) as stopped:
            verify.main(["--device", name])
        assert stopped.value.code == 2
        assert f"device: got '{name}', this machine offers cpu" in capsys.readouterr().err


def in_no_folder(tmp_path: Path) -> tuple[Path, str]:
    return tmp_path / "missing" / "x.json", "No such file or directory"


def a_folder(tmp_path: Path) -> tuple[Path, str]:
    return tmp_path, "which is not a file"


def below_a_file(tmp_path: Path) -> tuple[Path, str]:
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "x.json", "where no file can be made"


def a_device_file(tmp_path: Path) -> tuple[Path, str]:
    return Path("/dev/null"), "which is not a file"


def too_long(tmp_path: Path) -> tuple[Path, str]:
    return tmp_path / ("x" * 300), "File name too long"


def read_only_folder(tmp_path: Path) -> tuple[Path, str]:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs a file system that takes no new files even from root")
    return Path("/proc/x.json"), "where no file can be made"


@pytest.mark.parametrize(
    "case", [in_no_folder, a_folder, below_a_file, a_device_file, too_long, read_only_folder]
)
def test_a_record_that_cannot_be_written_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    case: Callable[[Path], tuple[Path, str]],
) -> None:
    monkeypatch.setattr(verify, "run", no_work)
    path, reason = case(tmp_path)
    left = sorted(tmp_path.iterdir())
    with pytest.raises(SystemExit) as stopped:
        verify.main(["--device", "cpu", "--json", str(path)])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert f"--json: got {str(path)!r}" in message and reason in message
    assert "expected a file in a folder that takes new files" in message
    assert sorted(tmp_path.iterdir()) == left


def test_a_write_protected_record_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("kept")
    monkeypatch.setattr(verify.os, "access", lambda where, mode: False)  # root may write to any file
    with pytest.raises(ValueError, match=r"--json: got .*record\.json', which is write-protected"):
        verify.check_writable(path)
    assert path.read_text() == "kept"


def test_a_record_is_written_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")

    def half(self: Path, text: str, **kind: str) -> None:
        with self.open("w") as file:
            file.write(text[: len(text) // 2])
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="disk full"):
        verify.write_whole(path, "new text")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_bad_arguments_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--devise", "cpu"], ["cpu"], ["--json"], ["--json", ""]):
        with pytest.raises(SystemExit) as stopped:
            verify.main(arguments)
        assert stopped.value.code == 2
