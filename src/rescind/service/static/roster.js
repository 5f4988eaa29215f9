/** Your line in the roster: find it in the log, and keep what opens it. */
import { html, useState } from './html.js'
import { OPEN, findLines } from './lines.js'
import { save } from './save.js'

/** @param {{model: any}} props */
export function Roster ({ model }) {
  const [found, setFound] = useState(null)
  const [busy, setBusy] = useState(false)
  const look = async () => {
    setBusy(true)
    setFound(await findLines(model.device))
    setBusy(false)
  }
  return html`<section aria-labelledby="roster"><h2 id="roster">Your line in the roster</h2>
    <p class="note">Each person who lends has a hidden line; the lines add up to the sum that was published. Yours tells others nothing.
      After you take something back, the next roster no longer counts it.</p>
    <div class="row"><button onClick=${look} aria-disabled=${busy}>find my line</button>
      ${found?.lines.length > 0 && html`<button onClick=${() => save('mine.json', JSON.stringify({ lines: found.lines }, null, 1), 'application/json')}>my lines ↓</button>`}</div>
    <div role="status">${busy && html`<p class="quiet">Reading the log…</p>`}${!busy && found && html`<${Found} found=${found} />`}</div>
  </section>`
}

function Found ({ found }) {
  const [look, says] = { true: ['good', 'Found: you are counted.'], false: ['bad', 'It does not verify.'] }[found.good] ?? ['open', 'Nothing was checked.']
  return html`<div class=${`summary ${look}`} data-lines=${String(found.good)}>
    <p><strong>${says}</strong></p>
    <ul>${found.says.map(line => html`<li key=${line}>${line}</li>`)}</ul>
    ${found.good && html`<p>Not checked here:</p><ul>${OPEN.map(line => html`<li key=${line}>${line}</li>`)}</ul>`}
  </div>`
}
