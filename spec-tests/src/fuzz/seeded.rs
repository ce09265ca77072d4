//! Inputs that follow from a seed and a number, for runs that no fuzzer guides: the same on every
//! machine, and begun again anywhere.

use crate::rng::Rng;

/// The longest input in bytes.
const MAX_LEN: usize = 2048;

/// Numbers that are often at an edge.
const EDGES: [u8; 8] = [0, 1, 2, 0x7f, 0x80, 0xfe, 0xff, 0x40];

/// The input of this number: one of the corpus with a few changes or, one time in eight, any bytes.
pub fn input(corpus: &[Vec<u8>], seed: u64, number: u64) -> Vec<u8> {
    // Each has a generator of its own, so that none depends on those before it.
    let mut rng = Rng::new(Rng::new(seed).next_u64() ^ Rng::new(number).next_u64());
    if corpus.is_empty() || rng.index(8) == 0 {
        // As many of a few bytes as of very many: most that can happen takes few steps.
        let most = MAX_LEN >> rng.index(MAX_LEN.ilog2() as usize);
        let len = rng.index(most + 1);
        return rng.bytes(len);
    }
    let mut bytes = one_of(corpus, &mut rng).clone();
    for _ in 0..=rng.index(8) {
        change(&mut bytes, corpus, &mut rng);
    }
    bytes.truncate(MAX_LEN);
    bytes
}

fn one_of<'a, T>(choices: &'a [T], rng: &mut Rng) -> &'a T {
    &choices[rng.index(choices.len())]
}

fn change(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.index(bytes.len() + 1);
    match rng.index(6) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, rng.next_u64() as u8),
        // The end of another behind the beginning of this one.
        2 => {
            let other = one_of(corpus, rng);
            let from = rng.index(other.len() + 1);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        kind => {
            let Some(byte) = bytes.get_mut(at) else { return };
            *byte = match kind {
                3 => *byte ^ (1 << rng.index(8)),
                4 => *one_of(&EDGES, rng),
                _ => rng.next_u64() as u8,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_follows_from_corpus_seed_and_number_alone() {
        let corpus = [vec![1; 40], vec![2; 3000], Vec::new()];
        let row = |seed| (0..200).map(|number| input(&corpus, seed, number)).collect::<Vec<_>>();
        assert_eq!(row(1), row(1));
        assert_eq!(row(1)[150], input(&corpus, 1, 150));
        assert_ne!(row(1), row(2));
        assert!(row(1).iter().all(|bytes| bytes.len() <= MAX_LEN));
    }

    #[test]
    fn without_a_corpus_there_are_inputs_too() {
        assert!((0..20).any(|number| !input(&[], 1, number).is_empty()));
    }
}
