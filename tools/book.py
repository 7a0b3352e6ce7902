"""`make book`: the steps from the chapters to the site, in one process; what has not changed is skipped.

In CI (`CI=true`) a stale recorded run, exercise notebook or page of mechanisms is an error; elsewhere the
steps `text`, `exercises` and `index` bring them up to date.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time

from tools import course, stamp

SITE = course.BUILD / "html"
LIBRARIES = course.ROOT / "vendor"
STEPS = {
    "libraries": ("tools.browser_libraries", "browser libraries"),
    "text": ("tools.twin", "Markdown of the recorded runs"),
    "exercises": ("tools.exercises", "exercise notebooks"),
    "gate": ("tools.gate", "every recorded run complete"),
    "index": ("tools.mechanisms", "the page of all mechanisms"),
    "values": ("tools.values", "every recorded value compared"),
    "prose": ("tools.prose_numbers", "every number of the prose backed"),
    "site": ("tools.site", "the site"),
}

WRITES = ("text", "exercises", "index")  # steps that bring files up to date; in CI they only compare


def arguments(step: str) -> list[str]:
    return ["--check"] if step in WRITES and os.environ.get("CI") else []


def key(step: str, tree: str) -> str:
    """What must be the same for a step to be skipped: all sources, its arguments, and what it has made."""
    made = {"libraries": LIBRARIES, "site": SITE}.get(step)
    return "\n".join([tree, *arguments(step), stamp.listing(made) if made else ""])


def run(step: str) -> None:
    """Run the module of a step; a failure in it ends the process with a line that names the step."""
    module, _ = STEPS[step]
    before = sys.argv
    sys.argv = [module, *arguments(step)]
    try:
        sys.modules.pop(module, None)  # an earlier step may have imported it; runpy would warn
        runpy.run_module(module, run_name="__main__", alter_sys=False)
    except SystemExit as end:
        if end.code not in (None, 0):
            if isinstance(end.code, str):
                print(end.code, flush=True)
            print(f"make book: stopped, step {step} failed", flush=True)
            raise SystemExit(end.code if isinstance(end.code, int) else 1) from None
    finally:
        sys.argv = before


def main() -> None:
    seconds: dict[str, float] = {}
    tree = stamp.digest(stamp.tree())
    for number, (step, (_, title)) in enumerate(STEPS.items(), 1):
        start = time.perf_counter()
        head = f"[{number}/{len(STEPS)}] {step + ':':<11}{title}"
        if stamp.passed(step, key(step, tree)):
            print(f"{head}: unchanged", flush=True)
        else:
            print(head, flush=True)
            stamp.clear(step)
            run(step)
            after = stamp.digest(stamp.tree())
            if after == tree or step in WRITES:  # a file edited meanwhile was perhaps not seen
                stamp.set_passed(step, key(step, after))
            tree = after
        seconds[step] = time.perf_counter() - start
        if seconds[step] >= 0.5:
            print(f"      {step} took {seconds[step]:.1f} s", flush=True)
    rounded = {step: round(value, 3) for step, value in seconds.items()}
    stamp.write(course.BUILD / "timings.json", json.dumps(rounded, indent=1).encode())
    print(f"{course.short(SITE / 'index.html')} is the start of the site ({sum(seconds.values()):.1f} s)")


if __name__ == "__main__":
    main()
