// Preact and htm, bound together: what every view is written in.
import { Component, Fragment, h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { Component, Fragment, render };
export const html = htm.bind(h);
