"""Does a message wake the worker, and can it do nothing else, whatever happens to Redis?"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty

import pytest
import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from gonogo.contract.worker_messages import WAKE_JOB
from tests.servers import RedisServer, wait_until
from worker.claims.loop import QUEUE_NAME, REQUESTS, start_listening

LIMIT_S = 20.0


@dataclass
class Rounds:
    """The main loop's side: answers each request, and counts them."""

    made: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def answer(self) -> None:
        while not self.stop.is_set():
            try:
                asked: Future[list[str]] | None = REQUESTS.get(timeout=0.02)
            except Empty:
                continue
            if asked is not None:
                self.made += 1
                asked.set_result(["run_x"])


@contextmanager
def listening(url: str) -> Iterator[Rounds]:
    """A listener on that server, and somebody who makes the rounds."""
    rounds, stopping = Rounds(), threading.Event()
    answering = threading.Thread(target=rounds.answer, daemon=True)
    answering.start()
    listener = start_listening(url, stopping)
    try:
        yield rounds
    finally:
        stopping.set()
        with redis.Redis.from_url(url) as connection:  # a message ends the blocking wait
            queue = Queue(QUEUE_NAME, connection=connection, serializer=JSONSerializer)
            queue.enqueue(WAKE_JOB, job_timeout=-1)
        listener.join(LIMIT_S)
        assert not listener.is_alive()
        rounds.stop.set()
        answering.join(60)


def send(server: RedisServer, name: str = WAKE_JOB, **more: object) -> Job:
    with redis.Redis.from_url(server.url) as connection:
        queue = Queue(QUEUE_NAME, connection=connection, serializer=JSONSerializer)
        return queue.enqueue(name, job_timeout=-1, **more)


def status(server: RedisServer, job: Job) -> str:
    with redis.Redis.from_url(server.url) as connection:
        found = Job.fetch(job.id, connection=connection, serializer=JSONSerializer)
        return str(found.get_status())


def wait_for_status(server: RedisServer, job: Job, expected: str) -> None:
    wait_until(
        lambda: status(server, job).endswith(expected), what=f"job {expected}", limit_s=LIMIT_S
    )


def test_a_message_makes_a_round(valkey_server: RedisServer) -> None:
    with listening(valkey_server.url) as rounds:
        wait_for_status(valkey_server, send(valkey_server), "FINISHED")
        assert rounds.made == 1


@pytest.mark.parametrize("name", ["os.system", "worker.claims.claimer.Claimer"])
def test_another_function_is_refused(valkey_server: RedisServer, tmp_path: Path, name: str) -> None:
    trace = tmp_path / "trace"
    with listening(valkey_server.url) as rounds:
        forged = send(valkey_server, name, args=(f"touch {trace}",))
        wait_for_status(valkey_server, forged, "FAILED")
        assert rounds.made == 0
        wait_for_status(valkey_server, send(valkey_server), "FINISHED")
        assert rounds.made == 1
    assert not trace.exists()


def test_callbacks_of_a_message_are_not_called(valkey_server: RedisServer) -> None:
    with listening(valkey_server.url):
        with redis.Redis.from_url(valkey_server.url) as connection:
            queue = Queue(QUEUE_NAME, connection=connection, serializer=JSONSerializer)
            forged = Job.create(
                WAKE_JOB, connection=connection, serializer=JSONSerializer, timeout=-1
            )
            forged._success_callback_name = "os.abort"
            forged._failure_callback_name = "os.abort"
            queue.enqueue_job(forged)
        wait_for_status(valkey_server, forged, "FINISHED")


@pytest.mark.parametrize("persistent", [False, True], ids=["forgets", "remembers"])
def test_the_listener_survives_a_redis_restart(
    valkey_server: RedisServer, persistent: bool
) -> None:
    valkey_server.persistent = persistent
    with listening(valkey_server.url) as rounds:
        wait_for_status(valkey_server, send(valkey_server), "FINISHED")
        for _ in range(2):
            valkey_server.kill()
            valkey_server.start()
            before = rounds.made
            wait_for_status(valkey_server, send(valkey_server), "FINISHED")
            assert rounds.made > before


def test_commands_over_redis_are_not_obeyed(valkey_server: RedisServer) -> None:
    with listening(valkey_server.url):
        wait_for_status(valkey_server, send(valkey_server), "FINISHED")
        with redis.Redis.from_url(valkey_server.url) as connection:
            for key in connection.smembers("rq:workers"):
                name = key.decode().removeprefix("rq:worker:")
                heard = connection.publish(f"rq:pubsub:{name}", '{"command": "shutdown"}')
                assert heard == 0
