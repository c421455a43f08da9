// edgewise-web: an edge model in the browser, and a large one behind a gateway for the tokens that decide.
export { CloudError, UsageError } from "./errors.js";
export { Breaker, Latency } from "./health.js";
export { Edge } from "./edge.js";
export { Gateway } from "./gateway.js";
export { stream } from "./loop.js";
export { Budget, Policy } from "./policy.js";
export { Entropy, MaxProb, Mlp, routerNamed } from "./routers.js";
export { ownThresholds, thresholdAt } from "./start.js";
