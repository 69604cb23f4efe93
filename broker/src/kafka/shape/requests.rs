//! The shapes of the requests served: Kafka's message schemas, reduced to what is needed to find where fields end.

use super::{Field, Kind, Shape};
use Kind::{Blob, Fixed, List, Many, One, Text};

const BOOL: Kind = Fixed(1);
const I8: Kind = Fixed(1);
const I16: Kind = Fixed(2);
const I32: Kind = Fixed(4);
const I64: Kind = Fixed(8);
const UUID: Kind = Fixed(16);

macro_rules! shapes {
    ($($name:ident flexible $since:literal [$($field:expr),* $(,)?];)*) => {
        $(pub(in crate::kafka) static $name: Shape = Shape { flexible_since: $since, fields: &[$($field),*] };)*
    };
}

shapes! {
    API_VERSIONS flexible 3 [
        Field::since(3, Text), // client software name
        Field::since(3, Text), // and version
        Field::since(5, Text), // cluster id
        Field::since(5, I32),  // node id
    ];
    METADATA flexible 9 [
        Field::all(Many(&[
            Field::since(10, UUID), // topic id
            Field::all(Text),
        ])),
        Field::since(4, BOOL),       // allow auto topic creation
        Field::between(8, 10, BOOL), // cluster authorized operations
        Field::since(8, BOOL),       // topic authorized operations
    ];
    PRODUCE flexible 9 [
        Field::all(Text), // transactional id
        Field::all(I16),  // acks
        Field::all(I32),  // timeout
        Field::all(Many(&[
            Field::until(12, Text),
            Field::since(13, UUID),
            Field::all(Many(&[
                Field::all(I32),
                Field::all(Blob),
            ])),
        ])),
    ];
    FETCH flexible 12 [
        Field::until(14, I32), // replica id
        Field::all(I32),       // max wait
        Field::all(I32),       // min bytes
        Field::all(I32),       // max bytes
        Field::all(I8),        // isolation
        Field::since(7, I32),  // session id
        Field::since(7, I32),  // session epoch
        Field::all(Many(&[
            Field::until(12, Text),
            Field::since(13, UUID),
            Field::all(Many(&[
                Field::all(I32),
                Field::since(9, I32),  // current leader epoch
                Field::all(I64),       // fetch offset
                Field::since(12, I32), // last fetched epoch
                Field::since(5, I64),  // log start
                Field::all(I32),       // max bytes
                Field::tagged(0, 17, UUID), // directory
                Field::tagged(1, 18, I64),  // high watermark
            ])),
        ])),
        Field::since(7, Many(&[ // forgotten
            Field::until(12, Text),
            Field::since(13, UUID),
            Field::all(List(&I32)),
        ])),
        Field::since(11, Text), // rack
        Field::tagged(0, 12, Text), // cluster id
        Field::tagged(1, 15, One(&[ // replica state
            Field::all(I32),
            Field::all(I64),
        ])),
    ];
    LIST_OFFSETS flexible 6 [
        Field::all(I32),      // replica id
        Field::since(2, I8),  // isolation
        Field::all(Many(&[
            Field::all(Text),
            Field::all(Many(&[
                Field::all(I32),
                Field::since(4, I32), // current leader epoch
                Field::all(I64),      // timestamp
            ])),
        ])),
        Field::since(10, I32), // timeout
    ];
    OFFSET_FOR_LEADER_EPOCH flexible 4 [
        Field::since(3, I32), // replica id
        Field::all(Many(&[
            Field::all(Text),
            Field::all(Many(&[
                Field::all(I32),
                Field::all(I32), // current leader epoch
                Field::all(I32), // leader epoch
            ])),
        ])),
    ];
    INIT_PRODUCER_ID flexible 2 [
        Field::all(Text),     // transactional id
        Field::all(I32),      // transaction timeout
        Field::since(3, I64), // producer id
        Field::since(3, I16), // producer epoch
    ];
    FIND_COORDINATOR flexible 3 [
        Field::until(3, Text),
        Field::since(1, I8),
        Field::since(4, List(&Text)),
    ];
    CREATE_TOPICS flexible 5 [
        Field::all(Many(&[
            Field::all(Text),
            Field::all(I32), // partitions
            Field::all(I16), // replication factor
            Field::all(Many(&[
                Field::all(I32),
                Field::all(List(&I32)),
            ])),
            Field::all(Many(&[
                Field::all(Text),
                Field::all(Text),
            ])),
        ])),
        Field::all(I32),  // timeout
        Field::all(BOOL), // validate only
    ];
    DELETE_TOPICS flexible 4 [
        Field::since(6, Many(&[
            Field::all(Text),
            Field::all(UUID),
        ])),
        Field::until(5, List(&Text)),
        Field::all(I32), // timeout
    ];
    CREATE_PARTITIONS flexible 2 [
        Field::all(Many(&[
            Field::all(Text),
            Field::all(I32), // count
            Field::all(Many(&[
                Field::all(List(&I32)),
            ])),
        ])),
        Field::all(I32),  // timeout
        Field::all(BOOL), // validate only
    ];
    DESCRIBE_CONFIGS flexible 4 [
        Field::all(Many(&[
            Field::all(I8),
            Field::all(Text),
            Field::all(List(&Text)),
        ])),
        Field::all(BOOL),      // synonyms
        Field::since(3, BOOL), // documentation
    ];
    DESCRIBE_CLUSTER flexible 0 [
        Field::all(BOOL),      // authorized operations
        Field::since(1, I8),   // endpoint type
        Field::since(2, BOOL), // fenced brokers
    ];
    ELECT_LEADERS flexible 2 [
        Field::since(1, I8), // election type
        Field::all(Many(&[
            Field::all(Text),
            Field::all(List(&I32)),
        ])),
        Field::all(I32), // timeout
    ];
    ALTER_CONFIGS flexible 2 [
        Field::all(Many(&[
            Field::all(I8),
            Field::all(Text),
            Field::all(Many(&[
                Field::all(Text),
                Field::all(Text),
            ])),
        ])),
        Field::all(BOOL), // validate only
    ];
    INCREMENTAL_ALTER_CONFIGS flexible 1 [
        Field::all(Many(&[
            Field::all(I8),
            Field::all(Text),
            Field::all(Many(&[
                Field::all(Text),
                Field::all(I8), // operation
                Field::all(Text),
            ])),
        ])),
        Field::all(BOOL), // validate only
    ];
}
