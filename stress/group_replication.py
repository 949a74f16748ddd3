"""A group of MySQL servers, one of which takes writes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

from servers import MySQL, MySQLServer, free_port, mysqld

from .clusters import NODES, Cluster, kill_node
from .databases import administer
from .journal import Journal
from .results import Result


class _Group(Cluster):
    title = "Group Replication"
    fault = "the primary killed with -9"
    dead = 0
    # The others wait five seconds for a dead member before they elect another primary.
    without = 15.0
    init_command = "SET SESSION group_replication_consistency = 'BEFORE'"
    state = (
        "SELECT member_state FROM performance_schema.replication_group_members"
        " WHERE member_id = @@server_uuid"
    )
    joined = "ONLINE"

    async def start(self) -> None:
        ports = [free_port() for _ in range(NODES)]
        addresses = [f"127.0.0.1:{port}" for port in ports]
        name = uuid.uuid4()
        for number, port in enumerate(ports):
            options = [
                *[f"--server-id={number + 1}", "--gtid-mode=ON", "--enforce-gtid-consistency=ON"],
                # Nobody can write to a server that is not in the group.
                *["--super-read-only=ON", "--report-host=127.0.0.1"],
                "--plugin-load-add=group_replication.so",
                "--group-replication-start-on-boot=OFF",
                f"--group-replication-group-name={name}",
                "--group-replication-communication-stack=MYSQL",
                f"--group-replication-local-address={addresses[number]}",
                f"--group-replication-group-seeds={','.join(addresses)}",
                "--group-replication-member-expel-timeout=0",
            ]
            node = await asyncio.to_thread(
                MySQL, mysqld(), durable=True, options=options, port=port
            )
            self.nodes.append(node)
            await self.join(node)

    async def join(self, node: MySQLServer) -> None:
        bootstrap = "SET GLOBAL group_replication_bootstrap_group"
        is_first = self.nodes == [node]
        await administer(
            node.url,
            *([f"{bootstrap} = ON"] if is_first else []),
            "START GROUP_REPLICATION USER = 'root'",
            f"{bootstrap} = OFF",
        )

    def check(self, result: Result, journal: Journal) -> None:
        refused = sum(count for name, count in journal.errors.items() if name.endswith(" 1290"))
        result.require(refused > 0, "members that are not the primary refuse writes")


def kill_primary() -> AsyncIterator[Result]:
    """Kill the member that takes writes."""
    return kill_node(_Group())
