/** A line over rounds (uPlot), in the colours of the page, as wide as its box. */
import uPlot from './vendor/uplot.mjs'
import { html, useEffect, useRef } from './html.js'

const HEIGHT = 200

/** @param {{rounds: any[], name: string}} props */
export function RoundChart ({ rounds, name }) {
  const box = useRef(null)
  const plot = useRef(null)
  useEffect(() => {
    const element = box.current
    const dark = matchMedia('(prefers-color-scheme: dark)')
    const draw = () => {
      plot.current?.destroy()
      plot.current = new uPlot(options(element, name), columns(rounds), element)
    }
    draw()
    const sizes = new ResizeObserver(() => {
      plot.current.setSize({ width: element.clientWidth, height: HEIGHT })
    })
    sizes.observe(element)
    dark.addEventListener('change', draw)
    return () => {
      sizes.disconnect()
      dark.removeEventListener('change', draw)
      plot.current.destroy()
      plot.current = null
    }
  }, [name])
  useEffect(() => { plot.current?.setData(columns(rounds)) }, [rounds])
  const last = rounds.findLast(one => one.value != null)
  const said = `${name} over ${rounds.length} rounds; now ${last?.value.toFixed(4) ?? 'not measured yet'}`
  return html`<div ref=${box} class="plot" role="img" aria-label=${said}></div>`
}

/** Only some rounds are measured; the line spans the others. */
function columns (rounds) {
  const sorted = [...rounds].sort((one, two) => one.number - two.number)
  return [sorted.map(one => one.number), sorted.map(one => one.value)]
}

function options (element, name) {
  const colour = token => getComputedStyle(element).getPropertyValue(token).trim()
  const axis = { stroke: colour('--quiet'), grid: { stroke: colour('--line'), width: 1 }, ticks: { show: false } }
  const four = (_, value) => value == null ? '–' : value.toFixed(4)
  return {
    width: element.clientWidth,
    height: HEIGHT,
    legend: { show: false }, // the numbers stand above it
    cursor: { show: false },
    scales: { x: { time: false } },
    axes: [{ ...axis }, { ...axis, size: 56 }],
    series: [
      { label: 'round' },
      { label: name, stroke: colour('--accent'), width: 2, points: { size: 5 }, spanGaps: true, value: four }
    ]
  }
}
