//! The bytes of a fuzzer as a row of decisions.

/// What is left of an input. Behind its end there are zeros, so that any bytes are an input and a
/// shorter one is a simpler one.
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes; fewer where there are no more.
    pub(super) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// The next bytes, with zeros behind them.
    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        let bytes = self.bytes(N);
        std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
    }

    pub(super) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// One of so many, which are at least one.
    pub(super) fn index(&mut self, len: usize) -> usize {
        usize::from(self.u8()) % len
    }

    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// All that is left.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
