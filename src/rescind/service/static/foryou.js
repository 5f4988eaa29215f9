/** For you: made on this device, each line with its reasons. */
import { html, useState } from './html.js'
import { single } from './records.js'
import { FEWEST } from './scoring.js'
import { age, counted, ordinal } from './words.js'

/** @param {{model: any}} props */
export function ForYou ({ model }) {
  const { list, release } = model
  const [open, setOpen] = useState('')
  if (!list) return html`<section aria-labelledby="for-you"><h2 id="for-you">For you</h2><p class="quiet">Being made…</p></section>`
  return html`<section aria-labelledby="for-you">
    <h2 id="for-you">For you</h2>
    <p class="quiet" data-made=${list.kind} data-ms=${list.ms}>${about(list, release)}</p>
    <ol class="list">${list.lines.map((line, n) => html`<${Line} key=${line.id} model=${model} line=${line} rank=${n + 1}
      open=${open === line.id} toggle=${() => setOpen(open === line.id ? '' : line.id)} />`)}</ol>
    ${release.rebuilt && html`<p class="quiet" data-rebuilt>${release.rebuilt}</p>`}
    <${Worth} list=${list} release=${release} />
  </section>`
}

function about (list, release) {
  const made = release.about && `release ${release.about.number}, ${age(release.about.made_at)}`
  return {
    release: `Made on this device in ${Math.max(1, Math.round(list.ms))} ms, from everything you have here · ${made}`,
    popular: `What many people lend${made ? ` · ${made}` : ''}. With ${FEWEST} records or more you get a list of your own.`,
    catalogue: 'There is no release yet, so nothing is known about what people like. These are the first titles of the catalogue.',
    service: 'Made by the service from what you lend: here every change shows at once, so there is no release to make lists from on this device.'
  }[list.kind]
}

function Line ({ model, line, rank, open, toggle }) {
  const names = line.because.map(one => one.title)
  return html`<li>
    <div class="line"><span class="rank" aria-hidden="true">${rank}</span>
      <span class="what"><span class="title">${line.title}</span>
        ${names.length > 0 && html`<span class="because">because of ${names.join(', ')}</span>`}</span>
      ${names.length > 0 && html`<button class="plain" aria-expanded=${open} aria-label=${`Why ${line.title}`} onClick=${toggle}>why</button>`}
    </div>
    ${open && html`<ul class="why">${line.because.map(one => html`<${Reason} key=${one.id} model=${model} rank=${rank} reason=${one} />`)}</ul>`}
  </li>`
}

function Reason ({ model, rank, reason }) {
  const { id, title, share, without } = reason
  const lent = model.counts(id) && !model.waiting.has(id)
  const moved = without === rank ? 'it would still be' : 'it would be'
  return html`<li><span>${Math.round(100 * share)} % of the reasons: <strong>${title}</strong>.
      ${without != null && ` Without it, ${moved} ${ordinal(without)}.`}</span>
    <span class="row">
      ${lent && html`<button aria-label=${`take it back: ${title}`} onClick=${single(() => model.takeBack([id]))}>take it back</button>`}
      <button aria-label=${`leave it out of my lists: ${title}`} onClick=${single(() => model.use(id, false))}>leave it out of my lists</button>
    </span></li>`
}

function Worth ({ list, release }) {
  if (!list.worth || !release.about) return null
  const { others, of, lent } = list.worth
  const left = html`<p>We made two lists with release ${release.about.number}: one from the ${counted(lent, 'record')} that you lend, as the
    service does on any device where you sign in, and one from nothing, which is what many people lend. ${others} of ${of} titles
    differ. The list above uses everything you have here, lent or not, so it does not change when you lend. What you lend also
    helps others: it is counted in the next release.</p>`
  return html`<div class="worth"><p><strong>What lending does for you:</strong> ${lent < FEWEST
    ? `nothing yet. With fewer than ${FEWEST} lent records the service shows what is popular.`
    : `${others} of your ${of} would be others without it, on any device where you sign in.`}</p>
    <details><summary>How we know</summary>${left}</details></div>`
}
