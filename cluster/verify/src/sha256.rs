//! The compression function of SHA-256 (FIPS 180-4, section 6.2.2) for several messages at once.
//!
//! With the processor's SHA instructions, each round of a message waits for the round before it.
//! Rounds of other messages fill that time: on AMD's Zen 4 a block takes 34 ns alone, and 17 ns as
//! one of four. Without the instructions, or in a build with `--cfg sha2_backend="soft"`, the crate
//! `sha2` hashes one message after the other.

use coppice_types::Digest;
use sha2::block_api::compress256;

pub(crate) const BLOCK_BYTES: usize = 64;
pub(crate) type Block = [u8; BLOCK_BYTES];
type State = [u32; 8];

/// The initial state (FIPS 180-4, section 5.3.3).
const INITIAL: State =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// Number of messages that keep the instructions busy. WebAssembly has none, and shall be small.
pub(crate) const LANES: usize = if cfg!(target_arch = "wasm32") { 1 } else { 4 };

/// Least length of the padding: one byte that begins with a set bit, and the message's length in
/// bits.
pub(crate) const PADDING_BYTES_MIN: usize = 9;

/// Length of a tag and two digests.
const PAIR_BYTES: usize = 1 + 2 * size_of::<Digest>();

/// Pads a message and returns its last blocks. `message_bytes` is the length of the whole message.
/// Its last `len` bytes are in `tail`, with zeros behind them.
#[inline]
pub(crate) fn pad(tail: &mut [u8], len: usize, message_bytes: usize) -> &[Block] {
    let end = (len + PADDING_BYTES_MIN).next_multiple_of(BLOCK_BYTES);
    tail[len] = 0x80;
    let bits = 8 * message_bytes as u64;
    tail[end - 8..end].copy_from_slice(&bits.to_be_bytes());
    tail[..end].as_chunks().0
}

/// Compresses the blocks of several messages into their states. The messages are compressed side by
/// side up to the end of the shortest one, and one after the other from there.
#[inline]
fn compress_each<const N: usize>(states: &mut [State; N], messages: [&[Block]; N]) {
    let common = messages.iter().map(|blocks| blocks.len()).min().unwrap_or(0);
    side_by_side(states, messages.map(|blocks| &blocks[..common]));
    for (state, blocks) in states.iter_mut().zip(messages).filter(|(_, blocks)| blocks.len() > common) {
        compress256(state, &blocks[common..]);
    }
}

#[inline]
fn side_by_side<const N: usize>(states: &mut [State; N], messages: [&[Block]; N]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(instructions) = x86::Instructions::found() {
        return instructions.side_by_side(states, messages);
    }
    states.iter_mut().zip(messages).for_each(|(state, blocks)| compress256(state, blocks));
}

/// The digest in a state after the last block.
#[inline]
fn digest(state: &State) -> Digest {
    let mut out = [0; size_of::<Digest>()];
    out.as_chunks_mut().0.iter_mut().zip(state).for_each(|(bytes, word)| *bytes = word.to_be_bytes());
    Digest(out)
}

/// Hashes padded messages.
#[inline]
pub(crate) fn digest_each<const N: usize>(messages: [&[Block]; N]) -> [Digest; N] {
    let mut states = [INITIAL; N];
    compress_each(&mut states, messages);
    states.each_ref().map(digest)
}

/// Hashes messages, side by side up to the end of the shortest one.
#[inline]
pub(crate) fn message_each<const N: usize>(messages: [&[u8]; N]) -> [Digest; N] {
    let parts = messages.map(<[u8]>::as_chunks);
    let mut states = [INITIAL; N];
    compress_each(&mut states, parts.map(|(blocks, _)| blocks));
    let mut tails = [[0; 2 * BLOCK_BYTES]; N];
    let mut ends: [&[Block]; N] = [&[]; N];
    for (((end, tail), message), (_, rest)) in ends.iter_mut().zip(&mut tails).zip(messages).zip(parts) {
        tail[..rest.len()].copy_from_slice(rest);
        *end = pad(tail, rest.len(), message.len());
    }
    compress_each(&mut states, ends);
    states.each_ref().map(digest)
}

/// Hashes pairs of digests, each behind the tag.
#[inline]
pub(crate) fn pair_each<const N: usize>(tag: u8, pairs: [[&Digest; 2]; N]) -> [Digest; N] {
    #[cfg(target_arch = "x86_64")]
    if let Some(instructions) = x86::Instructions::found() {
        return instructions.pair_each(tag, pairs);
    }
    let messages = pairs.map(|pair| pair_message(tag, pair));
    digest_each(messages.each_ref().map(|message| &message[..]))
}

/// A tag and two digests as a padded message.
fn pair_message(tag: u8, [left, right]: [&Digest; 2]) -> [Block; 2] {
    let mut message = [[0; BLOCK_BYTES]; 2];
    message[0][0] = tag;
    let (digests, _) = message.as_flattened_mut()[1..].as_chunks_mut();
    (digests[0], digests[1]) = (left.0, right.0);
    pad(message.as_flattened_mut(), PAIR_BYTES, PAIR_BYTES);
    message
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_extract_epi32, _mm_set_epi32, _mm_set_epi64x,
        _mm_sha256msg1_epu32, _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32, _mm_shuffle_epi8, _mm_shuffle_epi32,
    };

    use coppice_types::Digest;

    use super::{Block, INITIAL, PAIR_BYTES, State};

    cpufeatures::new!(features, "sha", "ssse3", "sse4.1");

    /// The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS
    /// 180-4, section 4.2.2).
    const K: [[u32; 4]; 16] = [
        [0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5],
        [0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5],
        [0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3],
        [0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174],
        [0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc],
        [0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da],
        [0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7],
        [0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967],
        [0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13],
        [0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85],
        [0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3],
        [0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070],
        [0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5],
        [0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3],
        [0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208],
        [0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2],
    ];

    /// Proof that the processor has the instructions.
    #[derive(Clone, Copy)]
    pub(super) struct Instructions(());

    #[expect(
        unsafe_code,
        reason = "an `Instructions` is made where the processor said that it has what these functions are compiled for"
    )]
    impl Instructions {
        #[inline]
        pub(super) fn found() -> Option<Self> {
            (cfg!(not(sha2_backend = "soft")) && features::get()).then_some(Self(()))
        }

        pub(super) fn side_by_side<const N: usize>(self, states: &mut [State; N], messages: [&[Block]; N]) {
            // SAFETY: `self` shows that the processor has the instructions; nothing else is
            // required.
            unsafe { side_by_side(states, messages) }
        }

        pub(super) fn pair_each<const N: usize>(self, tag: u8, pairs: [[&Digest; 2]; N]) -> [Digest; N] {
            // SAFETY: as in `side_by_side` above.
            unsafe { pair_each(tag, pairs) }
        }
    }

    // The functions below use no closures: code that takes a closure is compiled without the
    // instructions, so the closure would not be inlined.

    /// A state in the layout of the instructions: two vectors of four words, the first word in the
    /// highest place.
    #[derive(Clone, Copy)]
    struct Lane {
        abef: __m128i,
        cdgh: __m128i,
    }

    /// Sixteen words of a message, four in a vector.
    type Words = [__m128i; 4];

    #[target_feature(enable = "sha,ssse3,sse4.1")]
    #[inline]
    fn vector([a, b, c, d]: [u32; 4]) -> __m128i {
        _mm_set_epi32(a.cast_signed(), b.cast_signed(), c.cast_signed(), d.cast_signed())
    }

    #[target_feature(enable = "sha,ssse3,sse4.1")]
    #[inline]
    fn lane([a, b, c, d, e, f, g, h]: State) -> Lane {
        Lane { abef: vector([a, b, e, f]), cdgh: vector([c, d, g, h]) }
    }

    #[target_feature(enable = "sha,ssse3,sse4.1")]
    #[inline]
    fn state(Lane { abef, cdgh }: Lane) -> State {
        [
            _mm_extract_epi32::<3>(abef).cast_unsigned(),
            _mm_extract_epi32::<2>(abef).cast_unsigned(),
            _mm_extract_epi32::<3>(cdgh).cast_unsigned(),
            _mm_extract_epi32::<2>(cdgh).cast_unsigned(),
            _mm_extract_epi32::<1>(abef).cast_unsigned(),
            _mm_extract_epi32::<0>(abef).cast_unsigned(),
            _mm_extract_epi32::<1>(cdgh).cast_unsigned(),
            _mm_extract_epi32::<0>(cdgh).cast_unsigned(),
        ]
    }

    /// Four big-endian words from 16 bytes of a message, which are given as two little-endian
    /// numbers.
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    #[inline]
    fn words(first: u64, second: u64) -> __m128i {
        let big_endian = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
        _mm_shuffle_epi8(_mm_set_epi64x(second.cast_signed(), first.cast_signed()), big_endian)
    }

    /// The eight bytes from `at` on, as a little-endian number.
    #[inline]
    fn number<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u64 {
        u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes lie in the message"))
    }

    /// The 64 rounds of one block of each message.
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    #[inline]
    fn rounds<const N: usize>(lanes: &mut [Lane; N], blocks: &mut [Words; N]) {
        let before = *lanes;
        sixteen_rounds::<0, N>(lanes, blocks);
        sixteen_rounds::<1, N>(lanes, blocks);
        sixteen_rounds::<2, N>(lanes, blocks);
        sixteen_rounds::<3, N>(lanes, blocks);
        for (lane, before) in lanes.iter_mut().zip(before) {
            lane.abef = _mm_add_epi32(lane.abef, before.abef);
            lane.cdgh = _mm_add_epi32(lane.cdgh, before.cdgh);
        }
    }

    /// Sixteen rounds. The first sixteen use the words of the message. Later ones use the words
    /// that the schedule computes from the previous sixteen. The calls are written out, since a
    /// loop takes a tenth longer.
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    #[inline]
    fn sixteen_rounds<const FROM: usize, const N: usize>(lanes: &mut [Lane; N], blocks: &mut [Words; N]) {
        four_rounds::<0, N>(lanes, blocks, K[4 * FROM], FROM > 0);
        four_rounds::<1, N>(lanes, blocks, K[4 * FROM + 1], FROM > 0);
        four_rounds::<2, N>(lanes, blocks, K[4 * FROM + 2], FROM > 0);
        four_rounds::<3, N>(lanes, blocks, K[4 * FROM + 3], FROM > 0);
    }

    #[target_feature(enable = "sha,ssse3,sse4.1")]
    #[inline]
    fn four_rounds<const AT: usize, const N: usize>(
        lanes: &mut [Lane; N],
        blocks: &mut [Words; N],
        [k0, k1, k2, k3]: [u32; 4],
        scheduled: bool,
    ) {
        let k = vector([k3, k2, k1, k0]);
        for (lane, words) in lanes.iter_mut().zip(blocks) {
            if scheduled {
                let [second, third, last] = [words[(AT + 1) % 4], words[(AT + 2) % 4], words[(AT + 3) % 4]];
                let sum = _mm_add_epi32(_mm_sha256msg1_epu32(words[AT], second), _mm_alignr_epi8::<4>(last, third));
                words[AT] = _mm_sha256msg2_epu32(sum, last);
            }
            let sum = _mm_add_epi32(words[AT], k);
            lane.cdgh = _mm_sha256rnds2_epu32(lane.cdgh, lane.abef, sum);
            lane.abef = _mm_sha256rnds2_epu32(lane.abef, lane.cdgh, _mm_shuffle_epi32::<0x0e>(sum));
        }
    }

    #[target_feature(enable = "sha,ssse3,sse4.1")]
    fn side_by_side<const N: usize>(states: &mut [State; N], messages: [&[Block]; N]) {
        let mut lanes = [lane(INITIAL); N];
        for (lane, state) in lanes.iter_mut().zip(&*states) {
            *lane = self::lane(*state);
        }
        for at in 0..messages[0].len() {
            let mut blocks = [[words(0, 0); 4]; N];
            for (words, message) in blocks.iter_mut().zip(messages) {
                let block = &message[at];
                for (part, four) in words.iter_mut().enumerate() {
                    *four = self::words(number(block, 16 * part), number(block, 16 * part + 8));
                }
            }
            rounds(&mut lanes, &mut blocks);
        }
        for (state, lane) in states.iter_mut().zip(lanes) {
            *state = self::state(lane);
        }
    }

    /// Builds the messages in registers. In memory, the loads of whole words would wait for the
    /// bytes that were just stored one by one.
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    fn pair_each<const N: usize>(tag: u8, pairs: [[&Digest; 2]; N]) -> [Digest; N] {
        let bits = 8 * PAIR_BYTES as u64;
        let mut lanes = [lane(INITIAL); N];
        let (mut first, mut second) = ([[words(0, 0); 4]; N], [[words(0, 0); 4]; N]);
        for ((first, second), [left, right]) in first.iter_mut().zip(&mut second).zip(pairs) {
            let (left, right) = (&left.0, &right.0);
            *first = [
                words(number(left, 0) << 8 | u64::from(tag), number(left, 7)),
                words(number(left, 15), number(left, 23)),
                words(number(right, 0) << 8 | u64::from(left[31]), number(right, 7)),
                words(number(right, 15), number(right, 23)),
            ];
            second[0] = words(0x8000 | u64::from(right[31]), 0);
            second[3] = words(0, bits.swap_bytes());
        }
        rounds(&mut lanes, &mut first);
        rounds(&mut lanes, &mut second);
        let mut out = [Digest::default(); N];
        for (out, lane) in out.iter_mut().zip(lanes) {
            *out = super::digest(&state(lane));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_the_same_in_registers_and_as_a_message() {
        let pairs: [[Digest; 2]; 50] = core::array::from_fn(|at| {
            [2 * at, 2 * at + 1]
                .map(|seed| digest(&core::array::from_fn(|word| ((seed * 8 + word) as u32).wrapping_mul(0x9e37_79b1))))
        });
        for (tag, [left, right]) in (0..).zip(&pairs) {
            let mut state = INITIAL;
            compress256(&mut state, &pair_message(tag, [left, right]));
            assert_eq!(pair_each(tag, [[left, right]]), [digest(&state)]);
        }
    }
}
