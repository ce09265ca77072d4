//! The CRC by carry-less multiplication, which processors have for 16, 32 or 64 bytes at once.
//!
//! The CRC of a message is the message as a polynomial, times x^32, modulo the CRC's polynomial.
//! Sixteen bytes, a *lane*, that stand D bits before others may be replaced: they are multiplied by
//! x^D modulo the polynomial and added to those others. In three steps that leaves 32 bits:
//!
//! 1. *Fold.* A vector is one, two or four lanes side by side. Four vectors are kept as sums, and
//!    each is folded into every fourth vector of the message: four chains of multiplications that
//!    do not wait for each other. The first vectors hold the head, behind zeros.
//! 2. *Collect.* There remain the sums, fewer than four vectors that did not make a group, and
//!    fewer lanes than a vector has. Each lane is multiplied by the power of x that belongs to its
//!    distance from the end, and all are added: here nothing waits for anything. A short message
//!    has only this step and the next.
//! 3. *Reduce.* The result has 96 bits. Barrett's method divides it by the polynomial with two
//!    multiplications: by the polynomial's reciprocal, which gives the quotient, and by the
//!    polynomial, which gives what the quotient leaves.
//!
//! All lanes end where the message ends. So of the rest of the message as many bytes as are over
//! whole lanes are taken along by the head, which moves up for them.
//!
//! # Which powers
//!
//! Bits are in the order of the wire: bit 127 of a lane is 1, bit 0 is x^127. The low half, the
//! first eight bytes, thus counts x^64 more than the high half. A factor is a 32-bit polynomial in
//! the order of [`gf2`], with 1 at bit 31. Its product with 64 bits, where 1 is at bit 63, has 1 at
//! bit 31 + 63 = 94.
//!
//! Taken for a lane, whose 1 is at bit 127, the product counts x^33 too much, so that the factor
//! for folding over D bits is x^(D-33). The collected sum is taken to have 1 at bit 95, where a
//! product counts x too much; and it has the x^32 of the CRC's definition. The factor for a
//! distance of D bits to the end is x^(D+31).

use super::gf2;
use super::head::{self, HEAD};
use crate::Flow;
use std::arch::x86_64::*;
use std::sync::LazyLock;

/// Bytes that one carry-less multiplication takes.
const LANE: usize = 16;
/// Bytes of the widest vector.
const WIDEST: usize = 64;

/// Vectors that are summed up side by side. Their latency is about four times their throughput.
const SUMS: usize = 4;

/// The most lanes that are collected: of the sums, and one less than another group has.
const LANES_AT_END: usize = 2 * SUMS * WIDEST / LANE - 1;

/// Lanes of the head and of what it takes along.
const LANES_AT_START: usize = HEAD / LANE + 1;

/// The factors of the lanes for the collected sum, the last lane's last.
static TO_END: [[u8; LANE]; LANES_AT_END] = {
    let mut factors = [[0; LANE]; LANES_AT_END];
    let mut distance = 0;
    while distance < LANES_AT_END {
        let bits = 8 * (LANE * distance) as u32;
        factors[LANES_AT_END - 1 - distance] = lane_factors(bits + 31);
        distance += 1;
    }
    factors
};

/// The factors of a lane's halves: x^`exponent` for the high one.
const fn lane_factors(exponent: u32) -> [u8; LANE] {
    let low = gf2::power(&gf2::X, exponent + 64) as u128;
    let high = gf2::power(&gf2::X, exponent) as u128;
    (high << 64 | low).to_le_bytes()
}

/// The quotient of x^95 and the CRC's polynomial: bit 63 is 1.
const RECIPROCAL: u64 = {
    let mut quotient = 0;
    let mut rest = gf2::ONE;
    let mut power = 95;
    while power > 0 {
        power -= 1;
        // What would become x^32 is taken away as a multiple of the polynomial.
        if power < 64 && rest & 1 == 1 {
            quotient |= 1 << (63 - power);
        }
        rest = gf2::times_x(rest);
    }
    quotient
};

/// The CRC's polynomial with x^32: bit 32 is 1.
const POLYNOMIAL: u64 = (gf2::MODULUS as u64) << 1 | 1;

/// A way to compute an ICRC that this processor has.
#[derive(Clone, Copy)]
pub(super) struct Kernel(unsafe fn(&Flow, u16, u16, &[u8]) -> u32);

impl Kernel {
    /// Those that this processor has, the widest first.
    pub(super) fn available() -> impl Iterator<Item = Kernel> {
        let narrow = is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("ssse3");
        #[cfg(wide_clmul)]
        let wide =
            narrow && is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx2");
        let kernels = [
            #[cfg(wide_clmul)]
            (wide && is_x86_feature_detected!("avx512f"), Kernel(clmul_512)),
            #[cfg(wide_clmul)]
            (wide, Kernel(clmul_256)),
            (narrow, Kernel(clmul_128)),
        ];
        kernels.into_iter().filter_map(|(is_there, kernel)| is_there.then_some(kernel))
    }

    /// The first of them.
    #[inline]
    pub(super) fn widest() -> Option<Kernel> {
        static WIDEST: LazyLock<Option<Kernel>> = LazyLock::new(|| Kernel::available().next());
        *WIDEST
    }

    /// What [`super::compute`] is to compute.
    #[inline]
    pub(super) fn compute(self, flow: &Flow, ident: u16, fragment: u16, covered: &[u8]) -> u32 {
        // SAFETY: what it asks of the caller is that the processor has its instructions, and
        // `available`, where all of these are made, has looked.
        unsafe { (self.0)(flow, ident, fragment, covered) }
    }
}

/// The head, behind zeros, with as many bytes of the rest as are over whole lanes; and these whole
/// lanes.
#[inline]
#[target_feature(enable = "ssse3")]
fn start(head: [u128; HEAD / LANE], rest: &[u8]) -> ([__m128i; LANES_AT_START], &[[u8; LANE]]) {
    let zero = _mm_setzero_si128();
    let [a, b, c, d] = head.map(|lane| to_lane(lane));
    let taken = rest.len() % LANE;
    let whole = rest[taken..].as_chunks().0;
    if taken == 0 {
        return ([zero, a, b, c, d], whole);
    }
    let first = to_lane(match rest.first_chunk() {
        Some(first) => u128::from_le_bytes(*first),
        None => rest.iter().rev().fold(0, |lane, byte| lane << 8 | u128::from(*byte)),
    });
    // A shuffle takes the bytes with these numbers, and zero for a number that has bit 7. So it
    // keeps what a lane has from `taken` on, moved to its beginning, or moves the first `taken`
    // bytes of the next lane to where the end was.
    let numbers = to_lane(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100);
    let keep = _mm_add_epi8(numbers, _mm_set1_epi8((0x80 - LANE + taken) as i8));
    let fill = _mm_sub_epi8(numbers, _mm_set1_epi8((LANE - taken) as i8));
    let moved =
        |lane, next| _mm_or_si128(_mm_shuffle_epi8(lane, keep), _mm_shuffle_epi8(next, fill));
    ([moved(zero, a), moved(a, b), moved(b, c), moved(c, d), moved(d, first)], whole)
}

/// A kernel for one width of vectors, from the instructions for it. `$first_sums` are the vectors
/// in which the lanes `$start` come last, and `$add_lanes` adds up the lanes of a vector.
macro_rules! kernel {
    (
        $(#[$attribute:meta])*
        $name:ident, $features:literal, $vector:ty,
        $load:ident, $zero:ident, $xor:ident, $multiply:ident,
        |$start:pat_param, $fold:ident| $first_sums:expr, $add_lanes:expr
    ) => {
        $(#[$attribute])*
        #[target_feature(enable = $features)]
        fn $name(flow: &Flow, ident: u16, fragment: u16, covered: &[u8]) -> u32 {
            const LANES: usize = size_of::<$vector>() / LANE;
            static FOLD: [[u8; LANE]; LANES] =
                [lane_factors(8 * (SUMS * LANES * LANE) as u32 - 33); LANES];

            // SAFETY: any address will do, and there are as many bytes.
            let load = |lanes: &[[u8; LANE]; LANES]| unsafe { $load(lanes.as_ptr().cast()) };
            let multiply = |vector, factors| {
                $xor($multiply::<0x00>(vector, factors), $multiply::<0x11>(vector, factors))
            };
            let fold_factors = load(&FOLD);
            let $fold = |sum, next| $xor(multiply(sum, fold_factors), next);

            let (head, rest) = head::split(flow, ident, fragment, covered);
            let ($start, whole) = start(head, rest);
            let mut sums = $first_sums;
            let (vectors, lanes) = whole.as_chunks::<LANES>();
            let (groups, vectors) = vectors.as_chunks::<SUMS>();
            for group in groups {
                for i in 0..SUMS {
                    sums[i] = $fold(sums[i], load(&group[i]));
                }
            }

            let collected = (SUMS + vectors.len()) * LANES + lanes.len();
            let (factors, lane_factors) = TO_END[LANES_AT_END - collected..].as_chunks::<LANES>();
            let (sum_factors, factors) = factors.split_first_chunk::<SUMS>().expect("of the sums");
            let mut sum = $zero();
            for i in 0..SUMS {
                sum = $xor(sum, multiply(sums[i], load(&sum_factors[i])));
            }
            for (vector, factors) in vectors.iter().zip(factors) {
                sum = $xor(sum, multiply(load(vector), load(factors)));
            }
            let mut sum = $add_lanes(sum);
            for (lane, factors) in lanes.iter().zip(lane_factors) {
                let (lane, factors) = (load_lane(lane), load_lane(factors));
                sum = _mm_xor_si128(sum, _mm_clmulepi64_si128::<0x00>(lane, factors));
                sum = _mm_xor_si128(sum, _mm_clmulepi64_si128::<0x11>(lane, factors));
            }
            reduce(sum)
        }
    };
}

kernel! {
    clmul_128, "pclmulqdq,ssse3", __m128i,
    _mm_loadu_si128, _mm_setzero_si128, _mm_xor_si128, _mm_clmulepi64_si128,
    // The first lane is one too many, and stands just as far before the last as a fold goes.
    |[a, b, c, d, e], fold| [b, c, d, fold(a, e)],
    |sum| sum
}

kernel! {
    #[cfg(wide_clmul)]
    #[clippy::msrv = "1.89"]
    clmul_256, "pclmulqdq,avx2,vpclmulqdq", __m256i,
    _mm256_loadu_si256, _mm256_setzero_si256, _mm256_xor_si256, _mm256_clmulepi64_epi128,
    |[a, b, c, d, e], fold| {
        let zero = _mm_setzero_si128();
        [_mm256_setzero_si256(), two(zero, a), two(b, c), two(d, e)]
    },
    |sum| add_halves(sum)
}

kernel! {
    #[cfg(wide_clmul)]
    #[clippy::msrv = "1.89"]
    clmul_512, "pclmulqdq,avx2,vpclmulqdq,avx512f", __m512i,
    _mm512_loadu_si512, _mm512_setzero_si512, _mm512_xor_si512, _mm512_clmulepi64_epi128,
    |[a, b, c, d, e], fold| {
        let four = |low, high| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
        let zeros = _mm256_setzero_si256();
        let last = [four(zeros, two(_mm_setzero_si128(), a)), four(two(b, c), two(d, e))];
        [_mm512_setzero_si512(), _mm512_setzero_si512(), last[0], last[1]]
    },
    |sum| {
        let high = _mm512_extracti64x4_epi64::<1>(sum);
        add_halves(_mm256_xor_si256(_mm512_castsi512_si256(sum), high))
    }
}

#[cfg(wide_clmul)]
#[inline]
#[target_feature(enable = "avx2")]
fn two(low: __m128i, high: __m128i) -> __m256i {
    _mm256_set_m128i(high, low)
}

#[cfg(wide_clmul)]
#[inline]
#[target_feature(enable = "avx2")]
fn add_halves(sum: __m256i) -> __m128i {
    _mm_xor_si128(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum))
}

#[inline]
#[target_feature(enable = "sse2")]
fn to_lane(bytes: u128) -> __m128i {
    _mm_set_epi64x((bytes >> 64) as i64, bytes as i64)
}

#[inline]
#[target_feature(enable = "sse2")]
fn load_lane(bytes: &[u8; LANE]) -> __m128i {
    to_lane(u128::from_le_bytes(*bytes))
}

/// The CRC of the message whose collected sum this is.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn reduce(sum: __m128i) -> u32 {
    let divisor = _mm_set_epi64x(POLYNOMIAL as i64, RECIPROCAL as i64);
    // Of the 96 bits the first 64 decide on the quotient, which is the first 64 of the product.
    let quotient = _mm_clmulepi64_si128::<0x00>(sum, divisor);
    let rest = _mm_xor_si128(sum, _mm_clmulepi64_si128::<0x10>(quotient, divisor));
    !(_mm_cvtsi128_si32(_mm_srli_si128::<8>(rest)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reciprocal_times_the_polynomial_is_x_to_the_95_and_a_rest() {
        let reversed = |bits: u64, len: u32| u128::from(bits.reverse_bits() >> (64 - len));
        let (reciprocal, polynomial) = (reversed(RECIPROCAL, 64), reversed(POLYNOMIAL, 33));
        let product = (0..33)
            .filter(|power| polynomial >> power & 1 == 1)
            .fold(0, |product, power| product ^ reciprocal << power);
        assert_eq!(product >> 32, 1 << (95 - 32));
    }

    #[test]
    fn the_last_lane_is_only_multiplied_by_the_power_of_the_definition() {
        // The high half by 1, which is one x less than the sum counts, and the low half by x^64.
        let [low, high] = *TO_END[LANES_AT_END - 1].as_chunks::<8>().0 else { unreachable!() };
        assert_eq!(gf2::times_x(u64::from_le_bytes(high) as u32), gf2::power(&gf2::X, 32));
        assert_eq!(gf2::times_x(u64::from_le_bytes(low) as u32), gf2::power(&gf2::X, 96));
    }
}
