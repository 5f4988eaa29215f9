/** The panels of the operator's page: counts and times, never what a record is about. */
import { RoundChart } from './chart.js'
import { html } from './html.js'
import { standing } from './operator_state.js'
import { ago, count, moment, size, span, until } from './times.js'

const TONES = { PASS: 'good', FAIL: 'bad', VOID: 'bad', INCONCLUSIVE: 'open', UNAUDITED: 'open' }
const STATES = { learning: 'open', ready: 'good', failed: 'bad' }
const KINDS = { unshare: 'stop lending', erase: 'erase', leave: 'leave', access: 'access' }
const QUALITY = 'validation NDCG@20'
const READY = { can_write: 'can write', keys_open: 'keys open', sum_built: 'sum built' }

/** @param {{word: string, tone?: string}} props */
export const Badge = ({ word, tone = '' }) => html`<span class=${`badge ${tone}`}>${word}</span>`

export const Verdict = ({ word }) => html`<${Badge} word=${word} tone=${TONES[word] ?? ''} />`

/** @param {{title: string, aside?: any, children: any}} props */
export function Panel ({ title, aside, children }) {
  const id = title.toLowerCase().replaceAll(' ', '-')
  return html`<section class="card panel" aria-labelledby=${id}>
    <div class="panel-head"><h2 id=${id}>${title}</h2>${aside}</div>${children}
  </section>`
}

/** @param {{of: Record<string, any>}} props numbers by what they count */
export const Figures = ({ of }) => html`<ul class="figures">${Object.entries(of).map(
  ([name, value]) => html`<li key=${name}><strong>${value}</strong><span>${name}</span></li>`)}</ul>`

/** @param {{label: string, head: string[], rows: any[][], empty: string}} props */
export function Table ({ label, head, rows, empty }) {
  if (!rows.length) return html`<p class="quiet">${empty}</p>`
  const right = rows[0].map(value => typeof value === 'number' ? 'number' : '')
  const cell = (value, n) => html`<td class=${right[n]} data-name=${head[n]}>${right[n] ? count(value) : value}</td>`
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class="stacked">
    <thead><tr>${head.map((name, n) => html`<th scope="col" class=${right[n]}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map(row => html`<tr>${row.map(cell)}</tr>`)}</tbody>
  </table></div>`
}

/** Whether it is healthy, in words. @returns {{word: string, tone: string}} */
export function health (overview) {
  const { release_loaded: served, ...needed } = overview.ready
  const missing = Object.entries(needed).filter(([, holds]) => !holds)
  if (missing.length) return { word: `not ready: ${missing.map(([name]) => READY[name] ?? name).join(', ')}`, tone: 'bad' }
  return served ? { word: 'healthy', tone: 'good' } : { word: 'healthy, no release yet', tone: 'open' }
}

export function Health ({ overview }) {
  const { counts, listeners } = overview
  return html`<${Panel} title="Health">
    <${Figures} of=${{
      people: count(counts.people), 'lend something': count(counts.lenders), 'records lent': count(counts.lent),
      'pages open': count(listeners)
    }} />
  <//>`
}

/** @param {{overview: any, rows: any[], extend: (row: any) => void}} props */
export function Requests ({ overview, rows, extend }) {
  const { requests, release } = overview
  const line = row => {
    const left = until(row.expected_by)
    const name = row.request_id.slice(0, 8)
    return [
      html`<code>${name}</code>`, html`<${Badge} ...${standing(row, release.current)} />`,
      `${moment(row.expected_by)} (${left < 0 ? `${span(left)} over` : `in ${span(left)}`})`,
      html`<button type="button" onClick=${() => extend(row)} aria-label=${`Extend request ${name}`}>Extend</button>`,
      ago(row.received_at), KINDS[row.kind] ?? row.kind, row.n, row.level ?? '–'
    ]
  }
  const stuck = rows.filter(row => standing(row, release.current).tone === 'bad').length
  const hidden = requests.open - rows.length
  return html`<${Panel} title="Requests">
    <${Figures} of=${{
      open: count(requests.open), oldest: requests.oldest ? span(until(requests.oldest)) : '–',
      'due in 7 days': count(requests.due_in_7_days), 'stuck or late': count(stuck)
    }} />
    <${Table} label="Open requests" empty="Nothing waits." rows=${rows.map(line)}
      head=${['request', 'state', 'due', 'more time', 'received', 'kind', 'records', 'level']} />
    ${hidden > 0 && html`<p class="quiet">${count(hidden)} more are less urgent.</p>`}
    ${stuck > 0 && html`<p class="quiet">Stuck: a release was made since, and the request is not in it. Release again; if it
      stays, read the service's log.</p>`}
  <//>`
}

/** @param {{overview: any, releases: any[], start: () => void}} props */
export function Release ({ overview, releases, start }) {
  const { current, next, rules } = overview.release
  if (rules.instant) {
    return html`<${Panel} title="Release"><p>The instant form: every change shows at once, and there are no releases.</p><//>`
  }
  const changed = next.people_left == null ? 0 : rules.people - next.people_left
  const left = until(next.at_the_latest)
  const aside = start && html`<button type="button" onClick=${start}>Release now</button>`
  return html`<${Panel} title="Release" aside=${aside}>
    <${Figures} of=${{
      'in service': current ? `#${current.number}` : 'none', made: current ? ago(current.made_at) : '–',
      'people with other loans': `${count(changed)} of ${count(rules.people)}`,
      'until the next': Number.isNaN(left) ? '–' : left < 0 ? 'now' : span(left)
    }} />
    <label class="unseen" for="release-progress">People of the last release whose loans differ now</label>
    <progress id="release-progress" max=${rules.people} value=${changed}></progress>
    <${Table} label="Releases" empty="No release yet." rows=${releases.map(row => [
      `#${row.number}`, html`<${Verdict} word=${row.audit ?? '–'} />`, moment(row.at), row.people])}
      head=${['release', 'audit', 'made', 'people mixed']} />
  <//>`
}

/** @param {{jobs: any[], rounds: any[], live: boolean, start: any, serve: any, serving: any}} props */
export function Learning ({ jobs, rounds, live, start, serve, serving }) {
  const job = jobs[0]
  const last = rounds.at(-1)
  const measured = rounds.findLast(one => one.value != null) // not every round is measured
  const aside = start && html`<button type="button" onClick=${start} disabled=${job?.state === 'learning'}>
    Start a generation</button>`
  if (!job) {
    return html`<${Panel} title="Learning" aside=${aside}><p class="quiet">No generation yet: what is served comes from the sum.</p><//>`
  }
  return html`<${Panel} title="Learning" aside=${aside}>
    <p class="row"><strong>${job.recipe}</strong> <${Badge} word=${job.state} tone=${STATES[job.state] ?? ''} />
      <span class="quiet">begun ${ago(job.at)}${live ? '' : ', not live: reconnecting'}</span></p>
    <${Figures} of=${{
      round: job.state === 'learning' ? `${count(last?.number ?? 0)} of ${job.detail}` : count(last?.number ?? job.rounds),
      'seconds a round': last?.seconds?.toFixed(1) ?? '–', 'asked last': count(last?.asked),
      [QUALITY]: measured?.value.toFixed(4) ?? '–'
    }} />
    ${rounds.length > 0 && html`<${RoundChart} rounds=${rounds} name=${QUALITY} />`}
    <${Serving} job=${job} serve=${serve} serving=${serving} />
    ${jobs.length > 1 && html`<details><summary>Earlier generations <span class="note">${jobs.length - 1}</span></summary>
      <${Table} label="Earlier generations" empty="" head=${['recipe', 'state', 'begun', 'rounds']}
        rows=${jobs.slice(1).map(one => [one.recipe, html`<${Badge} word=${one.state} tone=${STATES[one.state] ?? ''} />`,
          moment(one.at), one.rounds])} /></details>`}
  <//>`
}

/** What serves: the release, or a generation that the operator chose beside it. */
function Serving ({ job, serve, serving }) {
  if (serving) {
    return html`<p>Serves beside the release: generation <code>${serving.job.slice(0, 8)}</code>.
      ${serve && html` <button type="button" onClick=${() => serve(null)}>Serve the release alone</button>`}</p>`
  }
  return serve && job.state === 'ready' &&
    html`<p><button type="button" onClick=${() => serve(job)}>Serve this generation</button></p>`
}

/** What an audit and its controls said. @param {{audits: any[]}} props */
export function Audits ({ audits }) {
  const rows = audits.map(row => {
    const found = findings(row)
    return [
      row.release == null ? 'generation' : `release #${row.release}`, html`<${Verdict} word=${row.verdict} />`,
      row.records, html`<span class="sentence">${controls(found)}</span>`, moment(row.at)
    ]
  })
  return html`<${Panel} title="Audits">
    <${Table} label="Audits" empty="No audit yet." rows=${rows}
      head=${['of', 'verdict', 'records judged', 'controls', 'when']} />
  <//>`
}

function findings (row) {
  try {
    return JSON.parse(row.detail ?? '[]')
  } catch {
    return []
  }
}

function controls (found) {
  const judged = found.find(one => Object.keys(one.controls ?? {}).length)
  if (!judged) return found.find(one => one.note)?.note ?? '–'
  const said = Object.entries(judged.controls).map(([name, value]) => `${name} ${value.toFixed(2)}`)
  const beside = `${judged.value?.toFixed(2)} beside ${said.join(', ')}`
  const unjudged = found.find(one => one.verdict === 'UNAUDITED')?.note // such as what a restart left nothing of
  return unjudged ? `${beside}. ${unjudged}` : beside
}

/** @param {{storage: any, keys: number, scan: () => void, scanning: boolean}} props */
export function Store ({ storage, scan, scanning }) {
  const files = Object.entries(storage.files).sort(([, one], [, two]) => two - one)
  const last = storage.scan
  const aside = scan && html`<button type="button" onClick=${scan} disabled=${scanning}>${scanning ? 'Scanning…' : 'Scan now'}</button>`
  return html`<${Panel} title="Store and keys" aside=${aside}>
    <${Figures} of=${{
      store: size(storage.bytes), keys: count(storage.keys), 'keys file': size(storage.files['keys.bin'] ?? 0),
      'last scan': !last ? 'none yet' : last.looked_for ? `${count(last.found)} found` : 'nobody to look for'
    }} />
    <p class="quiet">${last
      ? `The scan of ${moment(last.at)} looked for the loans of ${count(last.looked_for)} people in every file; it planted ${count(last.planted)} itself first and found them.`
      : 'No scan yet.'}</p>
    <details><summary>Files <span class="note">${files.length}</span></summary>
      <${Table} label="Files" head=${['file', 'size']} empty="" rows=${files.map(([name, bytes]) => [html`<code>${name}</code>`, size(bytes)])} />
    </details>
  <//>`
}

/** @param {{overview: any, witnesses: any}} props */
export function Witnesses ({ overview, witnesses }) {
  const { checkpoint } = witnesses
  const by = checkpoint?.by
  return html`<${Panel} title="Log and witnesses">
    <${Figures} of=${{
      leaves: count(overview.counts.leaves), witnesses: count(witnesses.witnesses.length),
      'signed the newest': by ? `${by.length} of ${checkpoint.of}` : '–',
      'last cosigned': checkpoint ? ago(checkpoint.at) : 'never'
    }} />
    <${Table} label="Witnesses" empty="Nobody cosigns this log yet: people must believe you alone." head=${['witness', 'signed', 'since']}
      rows=${witnesses.witnesses.map(one => [one.name, one.signed == null ? '–' : one.signed, moment(one.at)])} />
  <//>`
}
