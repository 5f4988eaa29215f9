/** Hand a file to the person. @param {string} name @param {BlobPart} data */
export function save (name, data, type = 'text/plain') {
  const address = URL.createObjectURL(new Blob([data], { type }))
  const link = document.createElement('a')
  link.href = address
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(address), 10000)
}
