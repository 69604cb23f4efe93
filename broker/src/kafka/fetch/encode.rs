//! The encoding of a Fetch response, by hand: it is the one response whose records must reach the socket without being
//! copied on the way. A test compares it with the decoder of `kafka-protocol` in every version.

use bytes::{BufMut, Bytes, BytesMut};
use epoka_proto::epochs::EpochEnd;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::Offset;
use epoka_proto::metadata::{BrokerRegistration, Endpoint, Image};

use super::{Asked, Fetch, Said};
use crate::kafka::lookup::{LeaderHint, hinted};
use crate::kafka::request::Call;
use crate::kafka::response::{Pieces, Response};

/// From this version on, topics have ids instead of names.
pub(super) const TOPIC_IDS_SINCE: i16 = 13;
/// From this version on, lengths are compact and structures end with tagged fields.
const FLEXIBLE_SINCE: i16 = 12;
/// From this version on, addresses come with leader hints.
const ENDPOINTS_SINCE: i16 = 16;

/// About what the fields of one partition and one topic take.
const FIELDS_LEN: usize = 64;

/// Encodes what the partitions said, handing their records on. With a `refusal`, versions that can say it once do.
pub(super) fn answer(
    call: &Call,
    listener: &str,
    image: &Image,
    refusal: Option<ErrorCode>,
    fetch: &mut Fetch,
    read_committed: bool,
) -> Response {
    let version = call.version;
    let header_version = i16::from(version >= FLEXIBLE_SINCE);
    let capacity = FIELDS_LEN * (1 + fetch.topics.len() + fetch.asked.len());
    let mut out = Writer {
        pieces: Pieces::new(call.correlation_id, header_version, capacity),
        version,
    };
    out.head().put_i32(0); // throttle time
    let refusal = refusal.filter(|_| version >= 7);
    if version >= 7 {
        out.head().put_i16(refusal.map_or(0, ErrorCode::code));
        out.head().put_i32(0); // no session
    }
    if refusal.is_some() {
        fetch.topics.clear();
        fetch.asked.clear();
    }
    out.array(fetch.topics.len());
    let hints: Vec<LeaderHint> = fetch.asked.iter().filter_map(hint).collect();
    let mut asked = fetch.asked.iter_mut();
    for topic in &fetch.topics {
        if version >= TOPIC_IDS_SINCE {
            out.head().put_slice(topic.id.as_bytes());
        } else {
            out.string(&topic.name);
        }
        out.array(topic.partitions);
        for asked in asked.by_ref().take(topic.partitions) {
            out.partition(asked, read_committed);
        }
        out.no_tags();
    }
    if version >= ENDPOINTS_SINCE && !hints.is_empty() {
        out.endpoints(&hinted(image, listener, hints.into_iter()));
    } else {
        out.no_tags();
    }
    out.pieces.finish()
}

fn hint(asked: &Asked) -> Option<LeaderHint> {
    match asked.said {
        Said::Refused(_, hint) => hint,
        _ => None,
    }
}

struct Writer {
    pieces: Pieces,
    version: i16,
}

impl Writer {
    fn head(&mut self) -> &mut BytesMut {
        self.pieces.head()
    }

    fn is_flexible(&self) -> bool {
        self.version >= FLEXIBLE_SINCE
    }

    fn partition(&mut self, asked: &mut Asked, read_committed: bool) {
        let said = std::mem::replace(
            &mut asked.said,
            Said::Refused(ErrorCode::UnknownServerError, None),
        );
        let (error, bounds, records, diverging, hint) = match said {
            Said::Data { grant, records } => (
                0,
                Some((grant.high_watermark, grant.log_start)),
                records,
                None,
                None,
            ),
            Said::Diverging(end) => (0, None, Bytes::new(), Some(end), None),
            Said::Refused(error, hint) => (error.code(), None, Bytes::new(), None, hint),
        };
        let high_watermark = Offset::to_wire(bounds.map(|(high_watermark, _)| high_watermark));
        let log_start = Offset::to_wire(bounds.map(|(_, log_start)| log_start));
        let (version, head) = (self.version, self.head());
        head.put_i32(asked.number);
        head.put_i16(error);
        head.put_i64(high_watermark);
        head.put_i64(high_watermark); // last stable offset: there are no transactions
        if version >= 5 {
            head.put_i64(log_start);
        }
        // Aborted transactions: none, or, for those who do not care, no list.
        if read_committed {
            self.array(0);
        } else if self.is_flexible() {
            self.head().put_u8(0);
        } else {
            self.head().put_i32(-1);
        }
        if version >= 11 {
            self.head().put_i32(-1); // no preferred replica to read from
        }
        self.length(records.len());
        self.pieces.put_records(records);
        self.partition_tags(diverging, hint);
    }

    /// Tags 0 and 1 of a partition: where the consumer's past parts from ours, and who leads now.
    fn partition_tags(&mut self, diverging: Option<EpochEnd>, hint: Option<LeaderHint>) {
        if !self.is_flexible() {
            return;
        }
        let head = self.head();
        head.put_u8(u8::from(diverging.is_some()) + u8::from(hint.is_some()));
        if let Some(end) = diverging {
            head.put_slice(&[0, 4 + 8 + 1]);
            head.put_i32(end.epoch.0);
            head.put_i64(end.end.0);
            head.put_u8(0);
        }
        if let Some(hint) = hint {
            head.put_slice(&[1, 4 + 4 + 1]);
            head.put_i32(hint.id.0);
            head.put_i32(hint.epoch.0);
            head.put_u8(0);
        }
    }

    /// Tag 0 of the response: addresses of the leaders hinted at.
    fn endpoints(&mut self, brokers: &[(&BrokerRegistration, &Endpoint)]) {
        let mut field = Self {
            pieces: Pieces::new(0, 0, FIELDS_LEN * brokers.len()),
            version: self.version,
        };
        field.head().clear();
        field.array(brokers.len());
        for (broker, endpoint) in brokers {
            field.head().put_i32(broker.id.0);
            field.string(&endpoint.host);
            field.head().put_i32(endpoint.port.into());
            match &broker.rack {
                Some(rack) => field.string(rack),
                None => field.head().put_u8(0),
            }
            field.no_tags();
        }
        let content = field.head().split();
        put_varint(self.head(), 1);
        put_varint(self.head(), 0);
        put_varint(self.head(), content.len());
        self.head().put_slice(&content);
    }

    fn array(&mut self, count: usize) {
        self.length(count);
    }

    /// A length of bytes or elements, never "none".
    fn length(&mut self, len: usize) {
        if self.is_flexible() {
            put_varint(self.head(), len + 1);
        } else {
            let len = i32::try_from(len).expect("answers are limited far below 2 GiB");
            self.head().put_i32(len);
        }
    }

    fn string(&mut self, text: &str) {
        if self.is_flexible() {
            put_varint(self.head(), text.len() + 1);
        } else {
            let len = i16::try_from(text.len()).expect("it came in a request of the same encoding");
            self.head().put_i16(len);
        }
        self.head().put_slice(text.as_bytes());
    }

    fn no_tags(&mut self) {
        if self.is_flexible() {
            self.head().put_u8(0);
        }
    }
}

fn put_varint(out: &mut BytesMut, value: usize) {
    let mut rest = value;
    while rest >= 0x80 {
        out.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::fetch::TopicOf;
    use crate::replica::{ReadGrant, ReadRequest, Reader};
    use epoka_proto::ids::{BrokerId, LeaderEpoch, TopicId};
    use epoka_proto::metadata::Record;
    use kafka_protocol::messages::{ApiKey, FetchResponse, TopicName};
    use kafka_protocol::protocol::{Decodable, StrBytes};

    const LISTENER: &str = "HOST";

    fn asked(number: i32, said: Said) -> Asked {
        Asked {
            number,
            topic: 0,
            request: ReadRequest {
                reader: Reader::Consumer,
                current_leader_epoch: None,
                offset: Offset(0),
                last_fetched_epoch: None,
                again: false,
            },
            max_bytes: 0,
            partition: None,
            said,
        }
    }

    fn fetch(version: i16) -> Fetch {
        let grant = ReadGrant {
            from: Offset(5),
            bound: Offset(9),
            high_watermark: Offset(9),
            log_start: Offset(3),
            leader_epoch: LeaderEpoch(2),
        };
        let hint = LeaderHint {
            id: BrokerId(2),
            epoch: LeaderEpoch(7),
        };
        let end = EpochEnd {
            epoch: LeaderEpoch(1),
            end: Offset(4),
        };
        let records = Bytes::from(vec![7; 2000]);
        let topic = |partitions| TopicOf {
            name: TopicName(StrBytes::from_static_str("orders")),
            id: uuid::Uuid::from_u128(99),
            partitions,
        };
        Fetch {
            version,
            topics: vec![topic(3), topic(1)],
            asked: vec![
                asked(0, Said::Data { grant, records }),
                asked(1, Said::Diverging(end)),
                asked(2, Said::Refused(ErrorCode::NotLeaderOrFollower, Some(hint))),
                asked(
                    3,
                    Said::Data {
                        grant,
                        records: Bytes::new(),
                    },
                ),
            ],
            budget: 0,
            bytes: 0,
        }
    }

    fn image() -> Image {
        let mut image = Image::default();
        image.apply(&Record::Broker(BrokerRegistration {
            id: BrokerId(2),
            epoch: epoka_proto::ids::BrokerEpoch(1),
            incarnation: epoka_proto::ids::Incarnation(uuid::Uuid::nil()),
            listeners: vec![Endpoint {
                name: LISTENER.into(),
                host: "b2".into(),
                port: 9093,
            }],
            grpc_address: String::new(),
            log_dirs: vec![TopicId(uuid::Uuid::nil())],
            rack: Some("r".into()),
            fenced: false,
            shutting_down: false,
        }));
        image
    }

    fn decoded(version: i16, refusal: Option<ErrorCode>, read_committed: bool) -> FetchResponse {
        let call = Call {
            api: ApiKey::Fetch,
            version,
            correlation_id: 77,
        };
        let response = answer(
            &call,
            LISTENER,
            &image(),
            refusal,
            &mut fetch(version),
            read_committed,
        );
        let mut wire = response.to_bytes();
        assert_eq!(wire.split_to(4), (wire.len() as i32).to_be_bytes()[..]);
        assert_eq!(wire.split_to(4), 77i32.to_be_bytes()[..]);
        if version >= FLEXIBLE_SINCE {
            assert_eq!(wire.split_to(1), [0][..]);
        }
        let decoded = FetchResponse::decode(&mut wire, version).expect("well formed");
        assert!(
            wire.is_empty(),
            "version {version} has {} bytes too many",
            wire.len()
        );
        decoded
    }

    #[test]
    fn every_version_is_what_a_client_decodes() {
        for version in 4..=18 {
            let response = decoded(version, None, version % 2 == 0);
            assert_eq!(response.responses.len(), 2);
            let parts = &response.responses[0].partitions;
            assert_eq!(parts[0].records.as_ref().map(Bytes::len), Some(2000));
            assert_eq!(
                (parts[0].high_watermark, parts[0].last_stable_offset),
                (9, 9)
            );
            assert_eq!(parts[0].aborted_transactions.is_some(), version % 2 == 0);
            assert_eq!(parts[0].preferred_read_replica.0, -1);
            assert_eq!(parts[2].error_code, ErrorCode::NotLeaderOrFollower.code());
            assert_eq!(response.responses[1].partitions[0].partition_index, 3);
            if version >= 5 {
                assert_eq!(parts[0].log_start_offset, 3);
            }
            if version >= 12 {
                assert_eq!(
                    (
                        parts[1].diverging_epoch.epoch,
                        parts[1].diverging_epoch.end_offset
                    ),
                    (1, 4)
                );
                assert_eq!(
                    (
                        parts[2].current_leader.leader_id.0,
                        parts[2].current_leader.leader_epoch
                    ),
                    (2, 7)
                );
                assert_eq!(parts[0].current_leader.leader_id.0, -1);
            }
            if version >= 13 {
                assert_eq!(response.responses[0].topic_id, uuid::Uuid::from_u128(99));
            } else {
                assert_eq!(&*response.responses[0].topic.0, "orders");
            }
            if version >= 16 {
                assert_eq!(response.node_endpoints.len(), 1);
                assert_eq!(response.node_endpoints[0].port, 9093);
            }
        }
    }

    #[test]
    fn a_refusal_is_said_once_where_the_version_can() {
        let response = decoded(18, Some(ErrorCode::FetchSessionIdNotFound), false);
        assert_eq!(
            response.error_code,
            ErrorCode::FetchSessionIdNotFound.code()
        );
        assert!(response.responses.is_empty());
        assert_eq!(
            decoded(4, Some(ErrorCode::InvalidRequest), false)
                .responses
                .len(),
            2
        );
    }
}
