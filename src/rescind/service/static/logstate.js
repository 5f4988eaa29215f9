/** What this browser, as a witness, says about the log. */
import { html } from './html.js'
import { save } from './save.js'
import { when } from './words.js'

/** @param {{log: import('./log.js').Seen | null}} props */
export function LogState ({ log }) {
  if (!log) return null
  const evidence = html`<button onClick=${() => save('fork.json', JSON.stringify(log.evidence, null, 1), 'application/json')}>save the evidence ↓</button>`
  if (log.state !== 'fork' && log.state !== 'keys') {
    return html`<section aria-labelledby="log"><h2 id="log">The log</h2>
      <p class="note" data-log=${log.state}>${log.says}${log.at && ` Read ${when(log.at)}: it may have grown since.`}</p>${log.state === 'older' && evidence}</section>`
  }
  return html`<section aria-labelledby="log" class="alarm" role="alert" data-log=${log.state}>
    <h2 id="log">${log.state === 'fork' ? 'The log was changed' : 'The keys were changed'}</h2>
    <p>${log.says}</p>
    <p>Do not trust new receipts. Save what this browser saw and show it to somebody you trust, a witness of the log or an authority${log.state === 'fork'
      ? ': the operator signed what is in it' : ': ask the operator for a reason'}.</p>
    ${evidence}
  </section>`
}
