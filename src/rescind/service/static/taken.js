/** Taken back: three steps with their times, papers to keep, and a check of them. */
import { bytes } from './api.js'
import { html, useState } from './html.js'
import { checkHere } from './mine.js'
import { save } from './save.js'
import { counted, seconds, when } from './words.js'

/** @param {{model: any}} props */
export function Taken ({ model }) {
  const { requests } = model
  if (!requests.length) return null
  return html`<section aria-labelledby="taken">
    <h2 id="taken">Taken back</h2>
    <ul class="taken">${requests.map(one => html`<li key=${one.request_id} class="card">
      <${Request} request=${one} due=${model.due} mine=${model.mine.get(one.request_id)} device=${model.device}
        path=${`/v1/me/requests/${one.request_id}`} catalogue=${model.catalogue} /></li>`)}</ul>
    <${Papers} />
  </section>`
}

/** One request. @param {{request: any, due: any, mine: any, device: any, path: string, catalogue: import('./catalogue.js').Catalogue}} props */
export function Request ({ request, due, mine, device, path, catalogue }) {
  const [checked, setChecked] = useState(null)
  const [busy, setBusy] = useState(false)
  const { steps } = request
  const known = mine?.items.length === 1 ? catalogue.title(mine.items[0]) : counted(request.n, 'record')
  const what = request.kind === 'leave' ? 'everything, and left' : known
  const take = (file, name, type) => async () => save(name, await bytes(`${path}/${file}`), type)
  const look = async () => {
    setBusy(true)
    setChecked(await checkHere(device, path, mine, catalogue.place))
    setBusy(false)
  }
  const name = `receipt-${request.request_id.slice(0, 8)}`
  return html`<div class="request" data-request=${request.request_id} data-status=${request.status}>
    <h3>${what} <span class="quiet">· ${when(request.received_at)}</span>${' '}<span class=${`badge ${request.status === 'fulfilled' ? 'good' : 'open'}`}>${
      request.status === 'fulfilled' ? 'done' : request.status.replace('_', ' ')}</span></h3>
    <${Steps} request=${request} due=${due} />
    ${request.delay && html`<p class="summary open" data-delay>It takes longer, at the latest until ${when(request.expected_by)}: ${request.delay}</p>`}
    <div class="row">
      ${mine?.acknowledgement && html`<button onClick=${() => save(`acknowledgement-${request.request_id.slice(0, 8)}.json`,
        JSON.stringify({ items: mine.items, ...mine.acknowledgement }, null, 1), 'application/json')}>acknowledgement ↓</button>`}
      ${request.status === 'in_progress' && steps.served && html`<span class="quiet">The receipt is being written: look again in a moment.</span>`}
      ${request.status === 'fulfilled' && steps.served && !request.receipt && html`<span class="quiet">No receipt can be issued any more: its key is gone. Use the one that was issued before.</span>`}
      ${request.receipt && html`
        <button onClick=${take('receipt', `${name}.json`, 'application/json')}>receipt ↓</button>
        <button onClick=${take('proof', `${name}.tlog-proof`)}>proof ↓</button>
        ${mine?.receipt_key && html`<button onClick=${() => save(`${name}.key`, `${mine.receipt_key}\n`)}>its key ↓</button>`}
        <button onClick=${look} aria-disabled=${busy}>check it here</button>`}
    </div>
    <div role="status">${busy && html`<p class="quiet">Checking… witnesses may take some seconds to sign.</p>`}${!busy && checked && html`<${Checked} found=${checked} />`}</div>
  </div>`
}

function Steps ({ request, due }) {
  const { steps, received_at: from } = request
  const rows = [
    ['unreadable in our store', steps.erased && seconds(from, steps.erased), 'in a moment'],
    ['out of the sum', steps.summed && seconds(from, steps.summed), 'in a moment'],
    ['out of what is served', steps.served && `${request.release ? `with release ${request.release}, ` : ''}${when(steps.served)}`, coming(due)]
  ]
  return html`<ol class="steps">${rows.map(([what, done, later]) => html`<li key=${what} class=${done ? 'done' : 'open'}>
    <span class="mark" aria-hidden="true">${done ? '✔' : '◔'}</span><span class="step">${what}<span class="unseen">${done ? ': done' : ': not yet'}</span></span>
    <span class="quiet">${done || later}</span></li>`)}</ol>`
}

/** When the next release is due, in words. */
function coming (due) {
  const number = due?.current ? `with release ${due.current.number + 1}` : 'with the next release'
  if (!due?.next?.at_the_latest) return number
  const people = due.next.people_left
  return `${number}: ${people ? `when ${counted(people, 'more person', 'more people')} of the last one have other loans, ` : ''}at the latest ${when(due.next.at_the_latest)}`
}

function Checked ({ found }) {
  const [look, says] = { true: ['good', 'Checked here: it is genuine.'], false: ['bad', 'It does not verify.'] }[found.good] ?? ['open', 'It was not checked.']
  return html`<div class=${`summary ${look}`} data-checked=${String(found.good)}>
    <p><strong>${says}</strong></p>
    <ul>${found.lines.map(line => html`<li key=${line}>${line}</li>`)}</ul>
    ${found.not.length > 0 && html`<details><summary>What it does not cover</summary>
      <ul>${found.not.map(line => html`<li key=${line}>${line}</li>`)}</ul></details>`}
  </div>`
}

export function Papers () {
  return html`<p class="note">Anybody can check without us that a receipt is signed, unchanged and in the log, though not that what it says is true:
    ${' '}<a href="/check.html" download="check.html">save the checker</a>, one file that works offline, or run <code>rescind verify</code>.</p>`
}
