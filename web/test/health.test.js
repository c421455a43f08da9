// The circuit breaker, as tests/loop/test_health.py has it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Breaker } from "../src/health.js";

test("other failures leave a probe and its pause alone", () => {
  let now = 0;
  const breaker = new Breaker(() => now);
  breaker.failed({ silent: true });
  assert.ok(breaker.allow());
  for (let i = 0; i < 4; i++) breaker.failed({ silent: true });
  now = 30;
  assert.ok(!breaker.allow(), "the probe still flies");
  breaker.failed({ probe: true });
  now += 2;
  assert.ok(breaker.allow());
});
