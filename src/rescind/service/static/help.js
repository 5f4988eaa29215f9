/** One switch: whether the sum counts what stays in this browser, and what leaves it then. */
import { html } from './html.js'
import { single } from './records.js'
import { counted } from './words.js'

/** @param {{model: any}} props */
export function Help ({ model }) {
  const { helping } = model
  const { on, elsewhere, waiting, sent } = helping
  if (!helping.offered || (!model.records.length && !sent.size)) return null
  const can = helping.stays.length
  const flip = () => on ? helping.turnOff() : helping.turnOn()
  return html`<section aria-labelledby="help" data-help=${on ? 'on' : elsewhere ? 'elsewhere' : 'off'}>
    <h2 id="help">Help the model</h2>
    <label class="check"><input type="checkbox" role="switch" checked=${on} disabled=${waiting || elsewhere || (!on && !can)}
      onChange=${event => { event.target.checked = on; flip() }} /> Help the model with what stays here</label>
    <p role="status">${says(helping, can)}</p>
    ${elsewhere && html`<button onClick=${single(() => helping.turnOff())}>take those ${sent.size} back</button>`}
    ${!elsewhere && !on && can > 0 && html`<p class="note">If you turn it on, the list of ${can === 1 ? 'this title' : `these ${can} titles`} is sent.
      Whoever runs this service can read the list while it is on.</p>`}
    <details><summary>What leaves this browser, and what for</summary>
      <ul><li>The list of titles that stay here, and one number: how much each pair of them counts. The fewer you have, the more.</li>
        <li>The service adds to its sum which of them go together, so that lists get better for everybody. It makes no lists for you from them.</li>
        <li>It keeps the list sealed, to subtract exactly the same numbers when you turn this off, delete a record here, or leave. You get a receipt.</li>
        <li>There is one server. With two that do not work together, neither could read the list; this service does not have that.</li>
        <li>What you add here later is sent, too, while this is on. What this browser saw lent or taken back once stays out.</li></ul></details>
  </section>`
}

function says ({ on, elsewhere, waiting, sent }, can) {
  if (waiting) return 'Not sent yet.'
  if (elsewhere) return `Another browser of yours helps with ${counted(sent.size, 'record')}. Only one can.`
  if (on) return `On: ${counted(sent.size, 'record is', 'records are')} counted in the sum.`
  if (can) return `Off: nothing about the ${counted(can, 'record')} that ${can === 1 ? 'stays' : 'stay'} here leaves this browser.`
  return 'Off: there is nothing to send. Every record here is lent, or was lent or taken back once.'
}
