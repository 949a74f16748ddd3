"""A Galera cluster of MariaDB nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from servers import MariaDB, MySQLServer, free_port

from .clusters import NODES, Cluster, kill_node
from .databases import mariadbd
from .journal import Journal
from .results import Result

_PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")


class _Galera(Cluster):
    title = "Galera"
    fault = "a node killed with -9"
    dead = 1
    without = 5.0
    init_command = "SET SESSION wsrep_sync_wait = 1"
    state = "SHOW STATUS LIKE 'wsrep_local_state_comment'"
    joined = "Synced"

    async def start(self) -> None:
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        if not _PROVIDER.exists():
            raise SystemExit(
                f"{_PROVIDER} is missing: .ci/nightly installs it from Debian's packages"
            )
        ports = [free_port() for _ in range(3 * NODES)]
        group, transfer, increments = ports[:NODES], ports[NODES : 2 * NODES], ports[2 * NODES :]
        members = ",".join(f"127.0.0.1:{port}" for port in group)
        for number in range(NODES):
            provider = [
                f"gmcast.listen_addr=tcp://127.0.0.1:{group[number]}",
                f"ist.recv_addr=127.0.0.1:{increments[number]}",
                "gcache.size=64M",
                # A dead node is given up after seconds; by default it takes longer.
                *["evs.keepalive_period=PT0.3S", "evs.inactive_check_period=PT0.3S"],
                *["evs.suspect_timeout=PT2S", "evs.inactive_timeout=PT4S"],
            ]
            options = [
                *["--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-on=ON"],
                f"--wsrep-provider={_PROVIDER}",
                f"--wsrep-provider-options={';'.join(provider)}",
                *[f"--wsrep-cluster-address=gcomm://{members}", "--wsrep-cluster-name=stress"],
                *["--wsrep-node-address=127.0.0.1", f"--wsrep-node-name=node-{number}"],
                *["--wsrep-sst-method=rsync"],
                f"--wsrep-sst-receive-address=127.0.0.1:{transfer[number]}",
            ]
            first = [] if self.nodes else ["--wsrep-new-cluster"]
            # The state transfer's rsync gives up root's rights.
            node = MariaDB(mariadbd(), durable=True, options=options, first=first, user="mysql")
            self.nodes.append(node)

    async def join(self, node: MySQLServer) -> None:
        pass  # A node joins when it starts.

    def check(self, result: Result, journal: Journal) -> None:
        result.require(journal.retried["1213"] > 0, "nodes met in certification")


def kill_galera_node() -> AsyncIterator[Result]:
    """Kill one of the nodes, all of which take writes."""
    return kill_node(_Galera())
