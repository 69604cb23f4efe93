//! Which partition a record goes to, chosen as Kafka's own clients choose: a key always has the same partition, whichever
//! client sends it; records without a key fill one partition's batch after another.

use std::collections::HashMap;
use std::sync::Mutex;

/// Remembers, for each topic, which partition records without a key go to for now.
pub(super) struct Partitioner {
    batch_bytes: usize,
    sticky: Mutex<HashMap<String, Sticky>>,
}

#[derive(Default)]
struct Sticky {
    partition: usize,
    bytes: usize,
}

impl Partitioner {
    pub fn new(batch_bytes: usize) -> Self {
        Self {
            batch_bytes,
            sticky: Mutex::default(),
        }
    }

    /// A number below `partitions`, which is at least 1.
    pub fn choose(&self, topic: &str, key: Option<&[u8]>, partitions: usize, size: usize) -> i32 {
        let chosen = match key {
            Some(key) => (murmur2(key) & 0x7fff_ffff) as usize % partitions.max(1),
            None => self.next_sticky(topic, partitions.max(1), size),
        };
        i32::try_from(chosen).expect("below a topic's number of partitions")
    }

    fn next_sticky(&self, topic: &str, partitions: usize, size: usize) -> usize {
        let mut topics = self.sticky.lock().expect("nothing panics under it");
        if !topics.contains_key(topic) {
            topics.insert(topic.to_owned(), Sticky::default());
        }
        let sticky = topics.get_mut(topic).expect("inserted above");
        if sticky.bytes >= self.batch_bytes {
            *sticky = Sticky {
                partition: sticky.partition + 1,
                bytes: 0,
            };
        }
        sticky.bytes += size;
        sticky.partition % partitions
    }
}

/// The 32-bit MurmurHash2 with the seed that Kafka's default partitioner uses.
fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ data.len() as u32;
    let (words, tail) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        let mut word = [0; 4];
        word[..tail.len()].copy_from_slice(tail);
        hash = (hash ^ u32::from_le_bytes(word)).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_hash_as_in_kafka() {
        // The vectors of Kafka's own UtilsTest.
        let expected = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ];
        for (key, hash) in expected {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
    }

    #[test]
    fn records_without_a_key_move_on_when_a_batch_is_full() {
        let partitioner = Partitioner::new(100);
        let chosen: Vec<_> = (0..6)
            .map(|_| partitioner.choose("orders", None, 2, 50))
            .collect();
        assert_eq!(chosen, [0, 0, 1, 1, 0, 0]);
    }

    #[test]
    fn a_key_has_one_partition_whatever_else_is_sent() {
        let partitioner = Partitioner::new(10);
        let first = partitioner.choose("orders", Some(b"customer-7"), 3, 50);
        partitioner.choose("orders", None, 3, 50);
        assert_eq!(
            partitioner.choose("orders", Some(b"customer-7"), 3, 50),
            first
        );
    }
}
