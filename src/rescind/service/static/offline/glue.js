/** The page around `check` in the file that is saved and opened offline. */
const field = name => document.getElementById(name)
const answer = (good, lines) => {
  const box = document.createElement('div')
  box.className = `summary ${good ? 'good' : 'bad'}`
  for (const line of lines) {
    const one = document.createElement('p')
    one.textContent = line
    box.append(one)
  }
  field('answer').replaceChildren(box)
}
const stated = ({ asked, done, time, verdict }) => [`Signed by the operator on ${time}.`,
  `It states: ${asked.kind} of ${asked.records} records; level ${done.level}; verdict ${verdict}. This does not check whether it is about your request.`]
field('check').onclick = async () => {
  try {
    if (!await canCheck()) return answer(false, ['This browser cannot check signatures of this kind (Ed25519). Use a newer one.'])
    const [receipt, proof] = ['receipt', 'proof'].map(name => field(name).files[0])
    if (!receipt) return answer(false, ['Choose the receipt first.'])
    const data = new Uint8Array(await receipt.arrayBuffer())
    if (!proof) {
      const alone = await openReceipt(data, field('operator').value)
      return answer(true, ['The signature is VALID. The place in the log was not checked.',
        'To check it, and what witnesses saw of the log, choose the proof of this receipt (.tlog-proof), too.',
        ...stated(alone), 'Not covered:', ...alone.not_covered])
    }
    const witnesses = field('witnesses').value.split('\n').filter(line => line.trim())
    const keys = { receipts: field('operator').value, log: field('log').value, witnesses }
    const found = await check(data, await proof.text(), keys)
    const seen = [...found.seen].map(([name, at]) => `Seen by ${name} on ${at.toISOString()}.`)
    if (!seen.length) seen.push('Note: nobody but the log itself vouches for its history. To check that somebody else does, put in the key of a witness.')
    answer(true, ['VALID', ...stated(found.receipt),
      `Entry ${found.index + 1} of ${found.size} in the log.`, ...seen, 'Not covered:', ...found.receipt.not_covered])
  } catch (error) {
    answer(false, [error instanceof NotThatKey ? 'Nothing was checked' : 'NOT VALID', error.message])
  }
}
