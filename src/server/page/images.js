// Pictures that a person adds: from the file picker, a drop or the clipboard. PNG, JPEG and WebP go as they are, other
// kinds that the browser can read become PNG, and very large ones are made smaller.
import { newId } from './tree.js';

const kAsTheyAre = new Set(['image/png', 'image/jpeg', 'image/webp']);
const kLargestFile = 6 << 20;
const kLongestSide = 3072;
export const kMostImages = 16;

function readUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

// {id, name, type, width, height, url}. Throws an Error that names the file.
export async function readImage(file) {
  const name = file.name || 'pasted image';
  if (!file.type.startsWith('image/')) throw new Error(`${name} is not an image.`);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${name} cannot be read as an image (${file.type}).`);
  }
  try {
    const { width, height } = bitmap;
    const asItIs = kAsTheyAre.has(file.type) && file.size <= kLargestFile;
    if (asItIs) return { id: newId(), name, type: file.type, width, height, url: await readUrl(file) };
    const scale = Math.min(1, kLongestSide / Math.max(width, height));
    const canvas = document.createElement('canvas');
    canvas.width = Math.max(1, Math.round(width * scale));
    canvas.height = Math.max(1, Math.round(height * scale));
    canvas.getContext('2d').drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const type = file.size > kLargestFile ? 'image/jpeg' : 'image/png';
    const url = canvas.toDataURL(type, 0.92);
    return { id: newId(), name, type, width: canvas.width, height: canvas.height, url };
  } finally {
    bitmap.close();
  }
}

export const imageFiles = (transfer) => [...(transfer?.files ?? [])].filter((file) => file.type.startsWith('image/'));
