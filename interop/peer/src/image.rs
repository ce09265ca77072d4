//! What an area of memory shall hold: the same bytes that `peer.py` makes.

use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write;
use urxe_conform::agent::number;

/// Patterns at some places, and the byte `rest` everywhere else.
#[derive(Deserialize)]
pub(crate) struct Image {
    pub(crate) mr: String,
    pub(crate) off: usize,
    len: usize,
    #[serde(default)]
    rest: u8,
    /// Offset, length and seed.
    #[serde(default)]
    parts: Vec<(usize, usize, usize)>,
    /// Offset and number, in hex.
    #[serde(default)]
    words: Vec<(usize, String)>,
    /// What is not looked at.
    #[serde(default)]
    pub(crate) skip: Vec<(usize, usize)>,
    #[serde(default)]
    pub(crate) timeout: f64,
}

impl Image {
    pub(crate) fn bytes(&self) -> Result<Vec<u8>, String> {
        let mut bytes = vec![self.rest; self.len];
        for &(off, len, seed) in &self.parts {
            for (i, byte) in bytes[off..off + len].iter_mut().enumerate() {
                *byte = (seed * 31 + i % 251 * 7 + 1) as u8;
            }
        }
        for (off, word) in &self.words {
            bytes[*off..off + 8].copy_from_slice(&word_of(word)?.to_ne_bytes());
        }
        Ok(bytes)
    }
}

fn word_of(text: &str) -> Result<u64, String> {
    number(Some(text)).ok_or_else(|| format!("{text:?} is no number in hex"))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Where two areas of one length differ.
pub(crate) fn difference(have: &[u8], want: &[u8]) -> Value {
    let wrong: Vec<usize> = (0..want.len()).filter(|&i| have[i] != want[i]).collect();
    let (Some(&first), Some(&last)) = (wrong.first(), wrong.last()) else {
        return json!({"same": true});
    };
    let shown = first..want.len().min(first + 16);
    json!({"same": false, "wrong": wrong.len(), "first": first, "last": last,
           "have": hex(&have[shown.clone()]), "want": hex(&want[shown])})
}
