// What can go wrong with the cloud. `reason` is what the token that the edge wrote instead reports.

export class CloudError extends Error {
  /** @param {string} reason @param {string} message */
  constructor(reason, message, { retryAfter = null, requestId = null } = {}) {
    super(message);
    this.name = "CloudError";
    this.reason = reason;
    this.retryAfter = retryAfter;
    this.requestId = requestId;
  }
}

export const unavailable = (message) => new CloudError("unavailable", message);
export const timedOut = (message) => new CloudError("timeout", message);
export const protocolError = (message) => new CloudError("protocol", message);

/** What the caller gave cannot be used: a setting, a prompt, a model's file. */
export class UsageError extends Error {
  constructor(message) {
    super(message);
    this.name = "UsageError";
  }
}
