//! The codecs of Kafka record batches, in the framings Kafka clients use: gzip, snappy (xerial chunks), lz4 (frame format),
//! zstd. Decompression is streaming, so memory follows the bytes read, never a size that the input claims.

use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

/// How the records of a batch are compressed. The id is what batch attributes carry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// Gzip (RFC 1952).
    Gzip,
    /// Snappy blocks in the chunked framing of xerial's snappy-java.
    Snappy,
    /// The LZ4 frame format.
    Lz4,
    /// Zstandard.
    Zstd,
}

/// No snappy encoder turns less than a byte into more than this many (a two-byte or three-byte copy gives at most 64).
const SNAPPY_MAX_RATIO: usize = 64;

/// Xerial's chunk size: what snappy-java writes and every reader expects to fit.
const SNAPPY_CHUNK: usize = 32 * 1024;

/// Opens a xerial stream: magic, version 1, compatible with version 1.
const SNAPPY_HEADER: [u8; 16] = *b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";

/// How much of the xerial header is magic.
const SNAPPY_MAGIC_LEN: usize = 8;

impl Compression {
    /// Every codec, for tables and tests.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// Reads the id of batch attributes (0 to 4).
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }

    /// The id of batch attributes.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// Kafka's name of the codec, as in `compression.type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Compresses into a new buffer.
    pub fn compress(self, plain: &[u8]) -> Vec<u8> {
        self.try_compress(plain)
            .expect("a codec that writes to memory has nothing to fail on")
    }

    fn try_compress(self, plain: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::None => Ok(plain.to_vec()),
            Self::Gzip => {
                let mut writer =
                    flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                writer.write_all(plain)?;
                writer.finish()
            }
            Self::Snappy => {
                let mut out = SNAPPY_HEADER.to_vec();
                let mut encoder = snap::raw::Encoder::new();
                for chunk in plain.chunks(SNAPPY_CHUNK) {
                    let block = encoder.compress_vec(chunk)?;
                    // A block of 32 KiB of input is far below 2 GiB.
                    out.extend_from_slice(&(block.len() as u32).to_be_bytes());
                    out.extend_from_slice(&block);
                }
                Ok(out)
            }
            Self::Lz4 => {
                let info = lz4_flex::frame::FrameInfo::new()
                    .block_size(lz4_flex::frame::BlockSize::Max64KB)
                    .block_mode(lz4_flex::frame::BlockMode::Independent);
                let mut writer = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
                writer.write_all(plain)?;
                writer.finish().map_err(io::Error::other)
            }
            Self::Zstd => zstd::bulk::compress(plain, zstd::DEFAULT_COMPRESSION_LEVEL),
        }
    }

    /// A reader of the plain bytes. Damage shows as an error of some `read`.
    pub fn reader<'a>(self, compressed: &'a [u8]) -> io::Result<Box<dyn Read + Send + 'a>> {
        Ok(match self {
            Self::None => Box::new(compressed),
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(compressed)),
            Self::Snappy => Box::new(SnappyReader::new(compressed)),
            Self::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(compressed)),
            Self::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(compressed)?),
        })
    }

    /// Decompresses into a new buffer of at most `limit` bytes; more than that, or damage, is an error.
    pub fn decompress(self, compressed: &[u8], limit: usize) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        let mut reader = self.reader(compressed)?.take(limit as u64 + 1);
        reader.read_to_end(&mut plain)?;
        if plain.len() > limit {
            return Err(invalid("more bytes than the limit allows"));
        }
        Ok(plain)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|c| c.name() == text)
            .ok_or_else(|| format!("{text:?} is not a codec: none, gzip, snappy, lz4 or zstd"))
    }
}

/// Reads xerial chunks, or one raw snappy block where the xerial header is missing, as snappy-java does.
struct SnappyReader<'a> {
    rest: &'a [u8],
    framed: bool,
    plain: Vec<u8>,
    taken: usize,
}

impl<'a> SnappyReader<'a> {
    fn new(compressed: &'a [u8]) -> Self {
        let framed = compressed.len() >= SNAPPY_HEADER.len()
            && compressed[..SNAPPY_MAGIC_LEN] == SNAPPY_HEADER[..SNAPPY_MAGIC_LEN];
        let rest = if framed {
            &compressed[SNAPPY_HEADER.len()..]
        } else {
            compressed
        };
        Self {
            rest,
            framed,
            plain: Vec::new(),
            taken: 0,
        }
    }

    /// The next raw block, `None` at the end.
    fn next_block(&mut self) -> io::Result<Option<&'a [u8]>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        if !self.framed {
            return Ok(Some(std::mem::take(&mut self.rest)));
        }
        // Streams may be concatenated, each with its own header.
        if self.rest.starts_with(&SNAPPY_HEADER[..SNAPPY_MAGIC_LEN]) {
            self.rest = self
                .rest
                .get(SNAPPY_HEADER.len()..)
                .ok_or_else(|| invalid("snappy header cut short"))?;
            return self.next_block();
        }
        let (len, rest) = self
            .rest
            .split_first_chunk::<4>()
            .ok_or_else(|| invalid("snappy chunk length cut short"))?;
        let len = u32::from_be_bytes(*len) as usize;
        if len > rest.len() {
            return Err(invalid("snappy chunk cut short"));
        }
        let (block, rest) = rest.split_at(len);
        self.rest = rest;
        Ok(Some(block))
    }
}

impl Read for SnappyReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.plain.len() {
            let Some(block) = self.next_block()? else {
                return Ok(0);
            };
            let claimed = snap::raw::decompress_len(block)?;
            if claimed > block.len().saturating_mul(SNAPPY_MAX_RATIO) {
                return Err(invalid("snappy block claims more than it can hold"));
            }
            self.plain.resize(claimed, 0);
            self.taken = 0;
            let written = snap::raw::Decoder::new().decompress(block, &mut self.plain)?;
            self.plain.truncate(written);
        }
        let count = out.len().min(self.plain.len() - self.taken);
        out[..count].copy_from_slice(&self.plain[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_and_names_read_back() {
        for codec in Compression::ALL {
            assert_eq!(Compression::from_id(codec.id()), Some(codec));
            assert_eq!(codec.name().parse(), Ok(codec));
        }
        assert_eq!(Compression::from_id(5), None);
        assert!("brotli".parse::<Compression>().is_err());
    }

    #[test]
    fn decompression_stops_at_the_limit() {
        let plain = vec![0; 1 << 20];
        for codec in Compression::ALL {
            let packed = codec.compress(&plain);
            assert_eq!(codec.decompress(&packed, 1 << 20).expect("fits"), plain);
            assert!(codec.decompress(&packed, (1 << 20) - 1).is_err(), "{codec}");
        }
    }

    #[test]
    fn raw_snappy_and_concatenated_xerial_streams_are_read() {
        let raw = snap::raw::Encoder::new()
            .compress_vec(b"hello")
            .expect("fits");
        let plain = Compression::Snappy.decompress(&raw, 100).expect("raw");
        assert_eq!(plain, b"hello");
        let mut twice = Compression::Snappy.compress(b"one");
        twice.extend(Compression::Snappy.compress(b"two"));
        let plain = Compression::Snappy.decompress(&twice, 100).expect("both");
        assert_eq!(plain, b"onetwo");
    }

    #[test]
    fn a_snappy_length_claim_is_not_believed() {
        // A varint that claims 2 GiB, then nothing that could fill it.
        let block = [0xff, 0xff, 0xff, 0xff, 0x07, 0x00];
        assert!(
            Compression::Snappy
                .decompress(&block, usize::MAX >> 1)
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn what_is_compressed_comes_back(plain in prop::collection::vec(0u8..8, 0..100_000)) {
            for codec in Compression::ALL {
                let packed = codec.compress(&plain);
                prop_assert_eq!(&codec.decompress(&packed, plain.len()).expect("ours"), &plain);
            }
        }

        #[test]
        fn garbage_is_an_error_or_bytes_but_never_a_panic(
            garbage in prop::collection::vec(any::<u8>(), 0..300),
            cut in 0usize..300,
        ) {
            for codec in Compression::ALL {
                let _ = codec.decompress(&garbage, 1 << 16);
                let mut damaged = codec.compress(&garbage);
                if let Some(byte) = damaged.get_mut(cut) {
                    *byte ^= 0x55;
                }
                let _ = codec.decompress(&damaged, 1 << 16);
                damaged.truncate(cut);
                let _ = codec.decompress(&damaged, 1 << 16);
            }
        }
    }
}
