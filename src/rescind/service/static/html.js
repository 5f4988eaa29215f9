/** What every page draws with: preact, its hooks, and htm instead of a build step. */
import { h, render, Fragment } from './vendor/preact.mjs'
import htm from './vendor/htm.mjs'

export { useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from './vendor/hooks.mjs'
export { Fragment, render }
export const html = htm.bind(h)
