"""A real SLURM of one node: munged, slurmctld and slurmd of Debian's packages, in its own folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

DAEMONS = ("munged", "slurmctld", "slurmd")
TOOLS = ("sbatch", "scancel", "sinfo", "squeue", "srun")
CONFIGURATION = Path("/etc/slurm")
FILES = ("slurm.conf", "gres.conf")


def why_not() -> str | None:
    """Why no SLURM can be started here; None if one can."""
    missing = [name for name in (*DAEMONS, *TOOLS) if _binary(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian's packages slurm-wlm and munge)"
    if os.getuid() != 0:
        return "SLURM's daemons are started as root"
    if any((CONFIGURATION / name).exists() for name in FILES):
        return f"this host has a SLURM of its own ({CONFIGURATION})"
    return None


def _binary(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in opened:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in opened]


class SingleNode:
    """The daemons, started and stopped by their pid files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = socket.gethostname().partition(".")[0]
        self.log = folder / "daemons.log"

    def write(self) -> None:
        """Key and configuration, and the links at /etc/slurm, where jobs look for them."""
        munge = self.folder / "munge"
        for path in (munge, self.folder / "state", self.folder / "spool"):
            path.mkdir(parents=True)
        munge.chmod(0o711)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o600)
        control, node = _free_ports(2)
        # Memory is promised, not enforced; two jobs share even a machine with one CPU.
        memory = int(psutil.virtual_memory().total / 2**20 * 0.95)
        cpus = os.cpu_count() or 1
        lines = {
            "ClusterName": "single",
            "SlurmctldHost": f"{self.host}(127.0.0.1)",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={munge / 'socket'}",
            "CredType": "cred/munge",
            "SlurmctldPort": control,
            "SlurmdPort": node,
            "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": self.folder / "spool",
            "SlurmctldPidFile": self.folder / "slurmctld.pid",
            "SlurmdPidFile": self.folder / "slurmd.pid",
            "SlurmctldLogFile": self.folder / "slurmctld.log",
            "SlurmdLogFile": self.folder / "slurmd.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "MpiDefault": "none",
            "SwitchType": "switch/none",
            "ReturnToService": 2,
            "SlurmdTimeout": 30,
            "KillWait": 5,
            "OverTimeLimit": 0,
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory",
            "GresTypes": "gpu",
            "MailProg": "/bin/true",
            "SchedulerParameters": (
                "sched_interval=5,bf_interval=5,batch_sched_delay=0,sched_min_interval=0"
            ),
        }
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        text += (
            f"NodeName={self.host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} Gres=gpu:1 "
            "State=UNKNOWN\n"
        )
        for name, default in (("main", "YES"), ("gpu", "NO")):
            text += (
                f"PartitionName={name} Nodes={self.host} Default={default} State=UP "
                "DefMemPerCPU=500 MaxTime=INFINITE\n"
            )
        (self.folder / "slurm.conf").write_text(text)
        # A GPU to be scheduled only; nothing computes on it.
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null Count=1\n")
        CONFIGURATION.mkdir(exist_ok=True)
        for name in FILES:
            (CONFIGURATION / name).symlink_to(self.folder / name)

    def _run(self, *command: str | Path) -> None:
        binary = _binary(str(command[0]))
        assert binary is not None
        with self.log.open("a") as log:
            subprocess.run([binary, *map(str, command[1:])], check=True, stdout=log, stderr=log)

    def start_munge(self) -> None:
        munge = self.folder / "munge"
        self._run(
            "munged",
            f"--key-file={munge / 'key'}",
            f"--socket={munge / 'socket'}",
            f"--pid-file={munge / 'pid'}",
            f"--log-file={munge / 'log'}",
            f"--seed-file={munge / 'seed'}",
            "--force",
        )

    def start_node(self) -> None:
        """Start slurmd."""
        (self.folder / "slurmd.pid").unlink(missing_ok=True)
        self._run("slurmd")

    def repair_node(self) -> None:
        """A failed node comes up again and takes jobs."""
        self.start_node()
        up = ["scontrol", "update", f"NodeName={self.host}", "State=RESUME"]
        subprocess.run(up, capture_output=True)
        self.wait_until_idle()

    def kill_node(self) -> None:
        """The node fails: slurmd and everything that it has started die at once."""
        pid = int((self.folder / "slurmd.pid").read_text())
        doomed = [psutil.Process(pid)]
        # The shepherds of job steps are no children of slurmd's.
        for process in psutil.process_iter(["name"]):
            if process.info["name"] == "slurmstepd":
                doomed += [process, *process.children(recursive=True)]
        for process in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(doomed, timeout=30)
        # The controller would find out by itself, after minutes.
        down = ["scontrol", "update", f"NodeName={self.host}", "State=DOWN", "Reason=failed"]
        subprocess.run(down, check=True)

    def state(self) -> str:
        """What sinfo says of the node; empty if the controller does not answer."""
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"], capture_output=True, text=True, timeout=60
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    def jobs(self) -> list[tuple[str, str, str]]:
        """Id, state and comment (the rule) of every job that SLURM still knows as active."""
        done = subprocess.run(
            ["squeue", "--noheader", "--format=%i|%T|%k"], capture_output=True, text=True, timeout=60
        )
        return [tuple(line.split("|", 2)) for line in done.stdout.splitlines() if "|" in line]  # type: ignore[misc]

    def start_requeued(self, seconds: float = 60) -> None:
        """Start at once what SLURM put back into its queue after a failure, which it would delay."""
        deadline = time.monotonic() + seconds
        while not [job for job, state, _ in self.jobs() if state == "PENDING"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no job was queued again; see {self.folder}")
            time.sleep(0.2)
        for job, state, _ in self.jobs():
            if state == "PENDING":
                subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)

    def wait_until_idle(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not self.state().startswith("idle"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the node is '{self.state()}'; see {self.folder}")
            time.sleep(0.2)

    def stop(self) -> None:
        """End the daemons by their pid files, and take the links away."""
        for path in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
            with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
                process = psutil.Process(int((self.folder / path).read_text()))
                process.send_signal(signal.SIGTERM)
                process.wait(20)
        for name in FILES:
            link = CONFIGURATION / name
            if link.is_symlink() and link.readlink() == self.folder / name:
                link.unlink()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[SingleNode]:
    """A SLURM that runs while the block does."""
    node = SingleNode(folder)
    try:
        node.write()
        node.start_munge()
        node._run("slurmctld")
        node.start_node()
        node.wait_until_idle()
        yield node
    finally:
        subprocess.run(["scancel", "--user=root"], capture_output=True, timeout=60)
        node.stop()
