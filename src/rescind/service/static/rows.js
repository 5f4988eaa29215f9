/**
 * A long list of which only the rows in sight are drawn, so that 5,000 rows scroll like 50.
 * All rows have the same height, which is measured and not stated: text may be large.
 */
import { html, useLayoutEffect, useRef, useState } from './html.js'

const SPARE = 8 // rows above and below the window

/** @param {{items: any[], row: (item: any) => any, label: string, empty: any}} props */
export function Rows ({ items, row, label, empty }) {
  const box = useRef(null)
  const [view, setView] = useState({ top: 0, height: 600, row: 56 })
  useLayoutEffect(() => {
    const measure = () => {
      const one = box.current?.querySelector('[data-row]')
      const height = one?.getBoundingClientRect().height || view.row
      setView(old => ({ ...old, row: height, height: box.current?.clientHeight || old.height }))
    }
    measure()
    const watch = new ResizeObserver(measure)
    watch.observe(box.current)
    return () => watch.disconnect()
  }, [items.length > 0])
  const first = Math.max(0, Math.floor(view.top / view.row) - SPARE)
  const last = Math.min(items.length, Math.ceil((view.top + view.height) / view.row) + SPARE)
  const before = useRef(null)
  const after = useRef(null)
  useLayoutEffect(() => { // through the object model: the policy of pages allows no style attribute
    before.current.style.height = `${first * view.row}px`
    after.current.style.height = `${(items.length - last) * view.row}px`
  })
  return html`<div class="rows" ref=${box} role="list" aria-label=${label} tabindex="0"
      onScroll=${event => { const top = event.currentTarget.scrollTop; setView(old => ({ ...old, top })) }}>
    <div ref=${before} role="presentation"></div>
    ${items.slice(first, last).map((item, n) => html`<div data-row class="record" role="listitem" key=${item.id}
      aria-setsize=${items.length} aria-posinset=${first + n + 1}>${row(item)}</div>`)}
    <div ref=${after} role="presentation"></div>
    ${!items.length && html`<div role="listitem" class="none">${empty}</div>`}
  </div>`
}
