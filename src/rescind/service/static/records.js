/** My records: one switch each, and one for all. Lending and taking back are equally near. */
import { Add } from './add.js'
import { html, useMemo, useState } from './html.js'
import { plain } from './catalogue.js'
import { Rows } from './rows.js'
import { counted } from './words.js'

const SHOWN = [['all', 'all'], ['lent', 'lent'], ['here', 'only here'], ['helps', 'helping'], ['waiting', 'not sent yet']]

/** @param {{model: any}} props */
export function Records ({ model }) {
  const { records, lent, waiting, helping } = model
  const [words, setWords] = useState('')
  const [shown, setShown] = useState('all')
  const [asking, setAsking] = useState(false)
  const known = useMemo(() => new Map(records.map(one => [one.id, plain(one.title)])), [records])
  const wanted = plain(words)
  const found = records.filter(({ id }) => known.get(id).includes(wanted) && (
    shown === 'all' || { waiting: waiting.has(id), lent: lent.has(id), helps: helping.sent.has(id), here: !model.counts(id) }[shown]))
  const here = found.filter(({ id }) => !lent.has(id) && !waiting.has(id)).map(one => one.id)
  const out = found.filter(({ id }) => model.counts(id) && !waiting.has(id)).map(one => one.id)
  const there = { waiting: waiting.size || shown === 'waiting', helps: helping.sent.size || shown === 'helps' }
  const all = found.length === records.length ? 'all' : `these ${found.length}`
  return html`<section aria-labelledby="records">
    <h2 id="records">My records</h2>
    ${records.length > 0 && html`<p class="lead">${counted(records.length, 'record is', 'records are')} on this device.
      ${' '}<strong>${counted(lent.size, 'is lent', 'are lent')}.</strong>
      ${helping.on && html` ${counted(helping.sent.size, 'helps', 'help')} the model.`}
      ${waiting.size > 0 && html` <span class="badge open">${counted(waiting.size, 'change')} not sent yet</span>`}</p>
    <progress max=${records.length} value=${lent.size} aria-label="Part of your records that is lent"></progress>`}
    <${Add} model=${model} />
    ${records.length > 0 && html`
    <div class="tools">
      <div class="find"><label for="find">Find</label>
        <input id="find" type="search" value=${words} onInput=${event => setWords(event.target.value)} /></div>
      <fieldset class="choice"><legend>Show</legend>
        ${SHOWN.filter(([name]) => there[name] ?? true).map(([name, label]) => html`<label key=${name}>
          <input type="radio" name="shown" checked=${shown === name} onChange=${() => setShown(name)} /> <span>${label}</span></label>`)}
      </fieldset>
      <div class="pair">
        <button aria-disabled=${!here.length} onClick=${single(() => here.length && model.lend(here))}>lend ${all}</button>
        <button aria-disabled=${!out.length} onClick=${() => out.length && setAsking(true)}>take ${all} back</button>
      </div>
    </div>
    ${asking && out.length > 0 && html`<div class="summary open" role="group" aria-labelledby="sure">
      <p id="sure">Take ${counted(out.length, 'record')} back? They become unreadable in our store, and leave what is served with the next
        release. They stay on this device, so you can lend them again.</p>
      <div class="row"><button class="bad" onClick=${single(() => { setAsking(false); return model.takeBack(out) })}>Yes, take them back</button>
        <button onClick=${() => setAsking(false)}>No</button></div></div>`}
    <${Rows} items=${found} label="My records" empty="Nothing here has these words." row=${item => html`<${Record} model=${model} item=${item} />`} />`}
  </section>`
}

function Record ({ model, item }) {
  const asked = model.waiting.get(item.id)
  const lent = asked ? asked === 'lend' : model.counts(item.id)
  const stands = model.lent.has(item.id) // until what is asked has been answered
  const helps = !stands && model.helping.sent.has(item.id)
  return html`
    <span class="title" title=${item.title}>${item.title}</span>
    <span class="day">${item.at}</span>
    <span class=${`state ${stands ? 'is-lent' : helps ? 'is-helping' : ''}`}>${stands ? 'lent' : helps ? 'helps the model' : 'only here'}${asked && html` <span class="badge open">${asked === 'lend' ? 'lending' : 'taking back'}: not sent yet</span>`}
      ${item.unused && html` <button class="plain" onClick=${single(() => model.use(item.id, true))}
        aria-label=${`Use ${item.title} for my lists again`}>use again</button>`}</span>
    <span class="act">
      ${(helps || !lent) && !asked && html`<button class="plain" aria-label=${`Delete ${item.title} from this device`} title="Delete from this device"
        onClick=${single(() => model.remove([item.id]))}>×</button>`}
      <button class="switch" aria-disabled=${Boolean(asked)} aria-label=${`${lent ? 'Take back' : 'Lend'} ${item.title}`}
        onClick=${single(() => !asked && (lent ? model.takeBack([item.id]) : model.lend([item.id])))}>${lent ? 'take back' : 'lend'}</button>
    </span>`
}

/** A double click is one wish: its second click must not undo what the first did. */
export const single = act => event => { if (event.detail < 2) act() }
