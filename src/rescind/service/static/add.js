/** Adding records: a file that is dropped or chosen, or titles that are picked. They stay here. */
import { html, useState } from './html.js'
import { LARGEST, added, matched, rowsOf, usersOf } from './importing.js'
import { counted } from './words.js'

/** @param {{model: any}} props */
export function Add ({ model }) {
  const [says, setSays] = useState('')
  const [open, setOpen] = useState(null) // rows of a file with several people
  const [over, setOver] = useState(false)

  const add = async rows => {
    const { found, unknown } = matched(rows, model.catalogue)
    const fresh = await model.add(found)
    setOpen(null)
    setSays(added(fresh, found.length - fresh, unknown, model.helping.on))
  }
  const read = async file => {
    setOpen(null)
    setSays('')
    if (!file) return
    try {
      if (file.size > LARGEST) throw new Error(`${file.name} is larger than ${LARGEST >> 20} MB.`)
      const rows = rowsOf(await file.text(), file.name)
      const users = usersOf(rows)
      if (users.length > 1) setOpen({ rows, users })
      else await add(rows)
    } catch (error) { setSays(error.message) }
  }
  return html`<div class=${`add ${over ? 'over' : ''}`} data-drop
      onDragOver=${event => { event.preventDefault(); setOver(true) }} onDragLeave=${() => setOver(false)}
      onDrop=${event => { event.preventDefault(); setOver(false); read(event.dataTransfer.files[0]) }}>
    <div class="ways">
      <div><label for="file">Add from a file</label>
        <input id="file" type="file" accept=".csv,.tsv,.txt,.inter,.data,.dat,.json" onChange=${event => { read(event.target.files[0]); event.target.value = '' }} />
        <p class="note">Drop it anywhere in this box: CSV, .inter, u.data or JSON. The file is read here${model.helping.on ? '. Titles that stay here help the model' : ' and sent nowhere'}.</p></div>
      <${Pick} model=${model} />
    </div>
    ${open && html`<${Whose} users=${open.users} chosen=${user => add(open.rows.filter(row => row.user === user))} />`}
    <p class="says" role="status">${says}</p>
  </div>`
}

function Whose ({ users, chosen }) {
  const [user, setUser] = useState('')
  return html`<form onSubmit=${event => { event.preventDefault(); if (users.some(([name]) => name === user)) chosen(user) }}>
    <label for="whose">This file has ${users.length.toLocaleString('en')} people. Which one are you?</label>
    <div class="row"><input id="whose" list="users" value=${user} onInput=${event => setUser(event.target.value)} />
    <datalist id="users">${users.slice(0, 200).map(([name, count]) => html`<option key=${name} value=${name}>${counted(count, 'line')}</option>`)}</datalist>
    <button aria-disabled=${!users.some(([name]) => name === user)}>Add these records</button></div></form>`
}

function Pick ({ model }) {
  const [words, setWords] = useState('')
  const has = new Set(model.records.map(one => one.id))
  const found = words.trim().length > 1 ? model.catalogue.search(words, 6, has) : []
  const add = item => model.add([{ ...item, at: new Date().toISOString().slice(0, 10) }])
  return html`<div><label for="pick">Or pick titles</label>
    <input id="pick" type="search" autocomplete="off" value=${words} onInput=${event => setWords(event.target.value)} />
    ${found.length > 0 && html`<ul class="found">${found.map(item => html`<li key=${item.id}>
      <button onClick=${() => add(item)}>+ ${item.title}</button></li>`)}</ul>`}
    ${words.trim().length > 1 && !found.length && html`<p class="note">No other title has these words.</p>`}</div>`
}
