// A longer way to the cloud, of one's choosing, in milliseconds; 0 is the way as it is.
import { state } from "./state.js";

export const TRIPS = [0, 20, 50, 100, 200, 300, 500];

// Whether the server can lengthen it: only to a model in its own process.
export const canBeLonger = () => Boolean(state.health?.cloud_is_here);

// What a request says of it.
export function asked(model) {
  const { trip } = state.settings;
  return trip && model !== "edgewise:edge" && canBeLonger() ? { round_trip: trip / 1000 } : {};
}
