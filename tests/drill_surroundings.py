"""Unusual environments for the drills (drills.py): limits, folders, languages, users and networks.

Each is a few lines of shell that run $PROBE, a fresh process that launches, emulates, saves, loads
and draws. It reports each step on a pipe: success, or one sentence that names what is missing. Some
need root and namespaces, and are skipped without them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
PROBE_S = 300.0

PROBE = """
import json, os, sys, tempfile
said = {}
def tried(name, act):
    try:
        said[name] = act()
    except BaseException as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        said[name] = f"{type(error).__name__}: {error}"
        if not {"JoinlabError", "OSError"} & set(kinds):
            said[name] = f"RAW {said[name]}"
    os.write(int(os.environ["SAID"]), json.dumps(said).encode() + b"\\n")
import joinlab
def program(rank, inputs):
    import torch
    import torch.distributed as dist
    print("r\u00e4nk", rank)
    for _ in inputs:
        dist.all_reduce(torch.ones(1))
options = dict(backend="gloo", timeout=120, no_progress=60, on_output=None, progress=False)
def launch():
    global timeline
    timeline = joinlab.launch(program, (2, 2), **options)
    return ", ".join(str(end) for end in timeline.ends)
def emulate():
    global timeline
    import joinlab.cases
    timeline = joinlab.emulate(joinlab.cases.case_1, (1, 1))
    return ", ".join(str(end) for end in timeline.ends)
timeline = None
def keep():
    if timeline is None:
        return "kept"
    with tempfile.TemporaryDirectory() as folder:
        joinlab.load(timeline.save(folder + "/x.joinlab"))
        joinlab.write_html(timeline, folder + "/x.html")
    return "kept"
SETUP
for name in os.environ["ASKED"].split():
    tried(name, globals()[name])
"""


@dataclass(frozen=True, slots=True)
class Surrounding:
    """shell   what runs $PROBE; "{tmp}" is a folder of its own
    launch  a regular expression for how the launch went
    needs   "" or "root": namespaces, mounts, other users
    setup   Python that the probe runs first
    """

    shell: str
    launch: str = "finished, finished"
    needs: str = ""
    setup: str = ""


def _inside(mounts: str, launch: str = "finished, finished") -> Surrounding:
    return Surrounding(f"exec unshare -m bash -c '{mounts}; exec $PROBE'", launch, "root")


READS = "-all,+dac_read_search"
USER = f"exec setpriv --reuid=54321 --regid=54321 --clear-groups --inh-caps={READS} --ambient-caps={READS}"
"""A user who owns nothing. He may read, since Python itself may lie in another user's home."""
REFUSES = "(LaunchError|OSError|FileNotFoundError): "

SURROUNDINGS: dict[str, Surrounding] = {
    "plain": Surrounding("exec $PROBE"),
    "LANG=C": Surrounding("LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 exec $PROBE"),
    "stdin, stdout and stderr closed": Surrounding("exec $PROBE <&- >&- 2>&-"),
    "ASCII output": Surrounding("PYTHONIOENCODING=ascii exec $PROBE"),
    "no environment": Surrounding(
        'exec env -i PATH="$PATH" SAID=$SAID ASKED="$ASKED" DRILL=$DRILL PYTHONPATH=$PYTHONPATH $PROBE'
    ),
    "no HOME": Surrounding("unset HOME; exec $PROBE"),
    "HOME missing": Surrounding("HOME=/no/such exec $PROBE"),
    "HOME read-only": Surrounding("HOME=/proc/1 exec $PROBE"),
    "TMPDIR missing": Surrounding("TMPDIR=/no/such exec $PROBE"),
    "TMPDIR in unicode": Surrounding(
        "mkdir '{tmp}/wörk 你好 🏖'; TMPDIR='{tmp}/wörk 你好 🏖' exec $PROBE"
    ),
    "TMPDIR of other bytes": Surrounding(
        'd={tmp}/$\'\\xff\\xfe\'; mkdir "$d"; TMPDIR="$d" exec $PROBE', REFUSES + ".*UTF-8"
    ),
    "TMPDIR with quotes": Surrounding(
        "mkdir \"{tmp}/a 'b' [c]*\"; TMPDIR=\"{tmp}/a 'b' [c]*\" exec $PROBE"
    ),
    "TMPDIR very long": Surrounding(
        'd={tmp}/$(printf "%0200d/%0200d" 1 2); mkdir -p $d; TMPDIR=$d exec $PROBE'
    ),
    "TMPDIR full": _inside(
        "mount -t tmpfs -o size=8k none {tmp}; head -c 8k /dev/zero >{tmp}/x",
        REFUSES + ".*TMPDIR|finished, finished",
    ),
    "TMPDIR nearly full": _inside("mount -t tmpfs -o size=96k none {tmp}", REFUSES),
    "TMPDIR read-only": _inside("mount -t tmpfs -o ro none {tmp}"),
    "no folder for temporary files": Surrounding(
        "exec $PROBE", REFUSES + ".*TMPDIR", setup="tempfile.tempdir = '/proc/no/such'"
    ),
    "read-only disk": _inside("mount -t tmpfs none {tmp}; mount -o remount,ro,bind / / || exit 7"),
    "no /dev/shm": _inside("umount -l /dev/shm || exit 7"),
    "/dev/shm full": _inside("mount -t tmpfs -o size=4k none /dev/shm"),
    "no /proc": _inside("mount -t tmpfs none /proc", f"finished, finished|{REFUSES}"),
    "second user": Surrounding(f"chmod 777 {{tmp}}; cd /; {USER} $PROBE", needs="root"),
    "second user, few processes": Surrounding(
        f"chmod 777 {{tmp}}; cd /; ulimit -u 6; {USER} $PROBE",
        f"finished, finished|{REFUSES}",
        "root",
    ),
    "another user's runs in TMPDIR": Surrounding(
        f"chmod 1777 {{tmp}}; mkdir -m 700 {{tmp}}/joinlab-4194303-x; cd /; {USER} $PROBE",
        needs="root",
    ),
    "no loopback": Surrounding(
        "exec unshare -n $PROBE", REFUSES + ".*(loopback|127.0.0.1)", "root"
    ),
    "IPv6 only": Surrounding(
        "exec unshare -n bash -c 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo || exit 7; exec $PROBE'",
        needs="root",
    ),
    "no port free": Surrounding(
        "exec unshare -n bash -c 'ip link set lo up; "
        "echo 50000 50000 >/proc/sys/net/ipv4/ip_local_port_range || exit 7; exec $PROBE'",
        REFUSES + ".*",
        "root",
    ),
    "processes of their own numbers": Surrounding(
        "exec unshare -p -f --mount-proc $PROBE", needs="root"
    ),
    "another clock": Surrounding(
        "exec unshare -T --boottime 100000 --monotonic 100000 $PROBE", needs="root"
    ),
    "interface of a name that is not there": Surrounding(
        "GLOO_SOCKET_IFNAME=nonsense exec $PROBE", f"finished, finished|{REFUSES}"
    ),
    "cwd deleted": Surrounding(
        "mkdir {tmp}/gone; cd {tmp}/gone; rmdir {tmp}/gone; exec $PROBE",
        REFUSES + ".*current folder",
        setup="os.environ['ASKED'] = 'launch'",  # importing torch in such a folder ends the process
    ),
    "cwd with a torch.py": Surrounding(
        "mkdir {tmp}/cwd; echo 'boom' >{tmp}/cwd/torch.py; cd {tmp}/cwd; exec $PROBE"
    ),
    "stdin closed": Surrounding("exec $PROBE <&-"),
    "stdout full": Surrounding("exec $PROBE >/dev/full"),
    "few descriptors": Surrounding("ulimit -n 64; exec $PROBE", f"finished, finished|{REFUSES}"),
    "hardly any descriptor": Surrounding(
        "ulimit -n 20; exec $PROBE", f"finished, finished|{REFUSES}"
    ),
    "small files": Surrounding("ulimit -f 64; exec $PROBE", f"finished, finished|{REFUSES}"),
    "no files": Surrounding("ulimit -f 0; exec $PROBE", REFUSES),
    "small stack": Surrounding("ulimit -s 512; exec $PROBE"),
    "little memory": Surrounding("ulimit -v 3000000; exec $PROBE", f"finished, finished|{REFUSES}"),
    "nothing locked": Surrounding("ulimit -l 0; exec $PROBE"),
    "umask 0777": Surrounding("umask 0777; exec $PROBE"),
    "signals ignored": Surrounding("trap '' INT CHLD TERM HUP PIPE; exec $PROBE"),
    "large environment": Surrounding('BIG=$(printf "%0100000d" 1); export BIG; exec $PROBE'),
    "torchrun's variables": Surrounding(
        "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=nowhere MASTER_PORT=1 exec $PROBE"
    ),
    "warnings are errors": Surrounding("exec python -W error ${PROBE#* }"),
    "asserts are off": Surrounding("exec python -O ${PROBE#* }"),
    "one CPU, at rest": Surrounding("exec nice -n 19 taskset -c 0 $PROBE"),
    "launched from a thread": Surrounding(
        "exec $PROBE",
        setup="real = launch\ndef launch():\n    import concurrent.futures\n"
        "    return concurrent.futures.ThreadPoolExecutor().submit(real).result()",
    ),
    "launched from a running loop": Surrounding(
        "exec $PROBE",
        setup="real = launch\ndef launch():\n    import asyncio\n    async def main(): return real()\n"
        "    return asyncio.run(main())",
    ),
}


def can_have_namespaces() -> bool:
    """Whether those that need root can be had here."""
    tools = all(map(shutil.which, ("unshare", "setpriv", "ip", "taskset")))
    return (
        tools
        and os.getuid() == 0
        and subprocess.run(["unshare", "-mnp", "-f", "true"]).returncode == 0
    )


def try_one(name: str, asked: str = "launch emulate keep") -> str:
    """Probe one surrounding; how it went, "skipped: why" or "WRONG: why"."""
    one = SURROUNDINGS[name]
    token = f"{os.getpid()}-{time.monotonic_ns()}"
    folder = Path(tempfile.mkdtemp(prefix="drill-"))
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    probe = folder / "probe.py"
    probe.write_text(PROBE.replace("SETUP", one.setup), encoding="utf-8")
    os.chmod(folder, 0o755)
    (folder / "tmp").mkdir()
    heard, told = os.pipe()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SAID": str(told), "ASKED": asked, "DRILL": token}
    env |= {"TMPDIR": str(folder / "tmp"), "PROBE": f"python {probe}"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", one.shell.replace("{tmp}", str(folder / "tmp"))],
        env=env, pass_fds=[told], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True, cwd=folder,
    ) as process:  # fmt: skip
        os.close(told)
        try:
            _, error = process.communicate(timeout=PROBE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"WRONG: nothing within {PROBE_S:g} s"
    with os.fdopen(heard, "rb") as lines:
        said = json.loads((lines.read().splitlines() or [b"{}"])[-1])
    try:
        return _judged(one, said, process.returncode, error.decode(errors="replace")) or _left(
            token, folder, shared
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judged(one: Surrounding, said: dict[str, str], code: int, error: str) -> str:
    if code == 7:
        return "skipped: this machine does not allow it"
    if not said:
        last = (error.strip().splitlines() or ["nothing"])[-1]
        own = "joinlab" in last or not re.search(r"(Error|error)\b", last)
        return (
            f"{'WRONG' if own else 'ended'}: before joinlab was imported: {last[:200]}"
            if one.launch != "finished, finished"
            else f"WRONG: {last[:300]}"
        )
    for name, text in said.items():
        if "RAW" in text or "\n" in text or "Traceback" in text or len(text) > 700:
            return f"WRONG: {name}: {text[:500]}"
    if not re.match(one.launch, said["launch"]):
        return f"WRONG: launched: {said['launch'][:400]}"
    emulated = said.get("emulate", "finished, finished")
    if emulated != "finished, finished" and (
        said["launch"] == "finished, finished" or "Error: " not in emulated
    ):
        return f"WRONG: emulated: {emulated}"
    if code:
        return f"WRONG: it ended with {code} after {said}: {error[-300:]}"
    if (
        "keep" in said
        and said["keep"] != "kept"
        and said["launch"] == "finished, finished"
        and "OSError" not in said["keep"]
    ):
        return f"WRONG: saved: {said['keep']}"
    return ""


def _left(token: str, folder: Path, shared: set[str]) -> str:
    """What the probe has left; "as it should" if that is nothing."""
    mine = [one for one in psutil.process_iter() if _has(one, token)]
    _, alive = psutil.wait_procs(mine, timeout=60)
    if alive := [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]:
        for one in alive:
            one.kill()
        return f"WRONG: left {alive}"
    if files := [
        path for path in (folder / "tmp").rglob("joinlab-*") if "4194303" not in path.name
    ]:
        return f"WRONG: left {files}"
    new = set(os.listdir("/dev/shm")) - shared if os.path.isdir("/dev/shm") else set()
    return (
        f"WRONG: left {new} in /dev/shm" if any("torch" in one for one in new) else "as it should"
    )


def _has(process: psutil.Process, token: str) -> bool:
    try:
        return process.environ().get("DRILL") == token
    except (psutil.Error, OSError):
        return False
