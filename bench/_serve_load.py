"""What Locust sends to the service: every user writes (and, if told so, reads), as fast as it gets answers."""

import os
import secrets

from locust import FastHttpUser, constant, task

TENANT, TABLE = os.environ["BENCH_TENANT"], os.environ["BENCH_TABLE"]
READS = os.environ.get("BENCH_READS") == "yes"


class Application(FastHttpUser):
    wait_time = constant(0)

    def send(self, operation: str, **fields: object) -> None:
        body = {"operation": operation, "tenant_id": TENANT, "namespace": "bench", "table": TABLE, **fields}
        headers = {"Authorization": f"Bearer {os.environ['BENCH_TOKEN']}"}
        with self.client.post("/database", json=body, headers=headers, name=operation, catch_response=True) as answer:
            if answer.status_code != 200:
                answer.failure(f"{answer.status_code} {answer.text[:200]}")

    @task(10)
    def write(self) -> None:
        self.send("WRITE", records=[{"id": secrets.randbits(60), "word": "w" * 20} for _ in range(10)])

    @task(1)
    def read(self) -> None:
        if READS:
            self.send("QUERY", filters=[{"field": "id", "op": "<", "value": 2**55}], limit=10)
