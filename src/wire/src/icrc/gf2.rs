//! Polynomials over GF(2) modulo the CRC's, in the CRC register's own order: bit 31 is 1, bit 0
//! is x^31. One bit of zero through the register is one multiplication by x.

/// The CRC's polynomial, without x^32.
pub(super) const MODULUS: u32 = 0xedb8_8320;

/// x, x^2, x^4, x^8 ...
pub(super) static X: [u32; 32] = squares(times_x(ONE));
/// x^-1, x^-2, x^-4, x^-8 ...
pub(super) static X_INVERSE: [u32; 32] = squares((ONE ^ MODULUS) << 1 | 1);

/// The polynomial 1.
pub(super) const ONE: u32 = 1 << 31;

/// `a` times x: what a bit of zero does to the register.
pub(super) const fn times_x(a: u32) -> u32 {
    a >> 1 ^ MODULUS & (a & 1).wrapping_neg()
}

/// The product of two polynomials.
pub(super) const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut power = 0;
    while power < 32 {
        product ^= b & (a >> (31 - power) & 1).wrapping_neg();
        b = times_x(b);
        power += 1;
    }
    product
}

const fn squares(first: u32) -> [u32; 32] {
    let mut squares = [first; 32];
    let mut i = 1;
    while i < 32 {
        squares[i] = multiply(squares[i - 1], squares[i - 1]);
        i += 1;
    }
    squares
}

/// The power of the polynomial whose repeated squares these are.
pub(super) const fn power(squares: &[u32; 32], exponent: u32) -> u32 {
    let mut product = ONE;
    let mut i = 0;
    while i < 32 {
        if exponent >> i & 1 == 1 {
            product = multiply(product, squares[i]);
        }
        i += 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x_and_its_inverse_cancel() {
        assert_eq!(multiply(X[0], X_INVERSE[0]), ONE);
        for bits in [0, 1, 31, 32, 33, 8 * 65_535] {
            assert_eq!(multiply(power(&X, bits), power(&X_INVERSE, bits)), ONE);
        }
    }

    #[test]
    fn a_zero_byte_through_the_crc_is_x_to_the_8() {
        // Of a CRC's register only the part that the initial value does not set is linear.
        let register =
            |bytes: &[u8]| crc32fast::hash(bytes) ^ crc32fast::hash(&vec![0; bytes.len()]);
        let short = register(&[1, 2, 3, 4]);
        let long = register(&[1, 2, 3, 4, 0, 0, 0]);
        assert_eq!(long, multiply(short, power(&X, 3 * 8)));
    }
}
