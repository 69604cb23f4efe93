//! What comes before an API's own code: which APIs and versions are served, the request header, and a decode that bad input
//! cannot turn against us.

use bytes::{Buf, Bytes};
use epoka_proto::error::ErrorCode;
use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::{Decodable, Message};

use super::shape::{self, Misshapen, Shape};

/// An API that is served.
pub(super) struct Api {
    /// Its key.
    pub(super) key: ApiKey,
    /// The oldest version served.
    pub(super) min: i16,
    /// The newest version served.
    pub(super) max: i16,
    /// How its requests are laid out.
    shape: &'static Shape,
}

const fn api(key: ApiKey, min: i16, max: i16, shape: &'static Shape) -> Api {
    Api {
        key,
        min,
        max,
        shape,
    }
}

/// Every API served: what ApiVersions advertises is this, so that clients never try what would fail.
pub(super) static APIS: &[Api] = &[
    api(ApiKey::Produce, 3, 13, &shape::PRODUCE),
    api(ApiKey::Fetch, 4, 18, &shape::FETCH),
    api(ApiKey::ListOffsets, 1, 10, &shape::LIST_OFFSETS),
    api(ApiKey::Metadata, 0, 13, &shape::METADATA),
    api(ApiKey::FindCoordinator, 0, 6, &shape::FIND_COORDINATOR),
    api(ApiKey::ApiVersions, 0, 5, &shape::API_VERSIONS),
    api(ApiKey::CreateTopics, 2, 7, &shape::CREATE_TOPICS),
    api(ApiKey::DeleteTopics, 1, 6, &shape::DELETE_TOPICS),
    api(ApiKey::InitProducerId, 0, 5, &shape::INIT_PRODUCER_ID),
    api(
        ApiKey::OffsetForLeaderEpoch,
        2,
        4,
        &shape::OFFSET_FOR_LEADER_EPOCH,
    ),
    api(ApiKey::DescribeConfigs, 1, 4, &shape::DESCRIBE_CONFIGS),
    api(ApiKey::AlterConfigs, 0, 2, &shape::ALTER_CONFIGS),
    api(ApiKey::CreatePartitions, 0, 3, &shape::CREATE_PARTITIONS),
    api(ApiKey::ElectLeaders, 0, 2, &shape::ELECT_LEADERS),
    api(
        ApiKey::IncrementalAlterConfigs,
        0,
        1,
        &shape::INCREMENTAL_ALTER_CONFIGS,
    ),
    api(ApiKey::DescribeCluster, 0, 2, &shape::DESCRIBE_CLUSTER),
];

/// Why a frame is not served: its connection is closed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// An API that does not exist or is not served, and so not advertised.
    #[error(
        "a request of API key {0}, which is not served here; perhaps this is not the Kafka protocol"
    )]
    UnknownApi(i16),
    /// A version that is not advertised.
    #[error(
        "a {api:?} request of version {version}, but {min} to {max} are served; the client should ask ApiVersions"
    )]
    Version {
        api: ApiKey,
        version: i16,
        min: i16,
        max: i16,
    },
    /// Bytes that contradict their header.
    #[error("a {api:?} request of version {version} that is malformed: {why}")]
    Malformed {
        api: ApiKey,
        version: i16,
        why: String,
    },
    /// A produce that wants no answer failed; closing makes its client look for the leader again.
    #[error("a produce with acks=0 failed with {0}, and closing is the only way to tell")]
    Unacknowledged(ErrorCode),
    /// An answer of ours does not fit the protocol.
    #[error("the answer to a {api:?} request cannot be encoded: {why}")]
    Unencodable { api: ApiKey, why: String },
}

/// A request's header: what is asked, and how to answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Call {
    /// What is asked.
    pub(super) api: ApiKey,
    /// In which version.
    pub(super) version: i16,
    /// The client's number for the request.
    pub(super) correlation_id: i32,
}

/// A frame whose header has been read.
pub(super) enum Opened {
    /// A request of a version that is served, with its body.
    Request(Call, Bytes),
    /// An ApiVersions request that is newer than what is served: answered all the same, in version 0 (KIP-511).
    TooNewApiVersions(Call),
}

/// Reads a frame's header and checks that the body has the shape it announces.
pub(super) fn open(mut frame: Bytes) -> Result<Opened, Refused> {
    let Some(start) = frame.first_chunk::<8>() else {
        return Err(Refused::UnknownApi(-1)); // frames are at least this long
    };
    let [k0, k1, v0, v1, c0, c1, c2, c3] = *start;
    let key = i16::from_be_bytes([k0, k1]);
    let version = i16::from_be_bytes([v0, v1]);
    let correlation_id = i32::from_be_bytes([c0, c1, c2, c3]);
    let served = APIS.iter().find(|api| api.key as i16 == key);
    let served = served.ok_or(Refused::UnknownApi(key))?;
    let call = Call {
        api: served.key,
        version,
        correlation_id,
    };
    if !(served.min..=served.max).contains(&version) {
        if served.key == ApiKey::ApiVersions {
            return Ok(Opened::TooNewApiVersions(Call { version: 0, ..call }));
        }
        return Err(Refused::Version {
            api: served.key,
            version,
            min: served.min,
            max: served.max,
        });
    }
    frame.advance(8);
    let malformed = |why: Misshapen| Refused::Malformed {
        api: call.api,
        version,
        why: why.to_string(),
    };
    let flexible = version >= served.shape.flexible_since;
    let header = shape::check_header_end(flexible, &frame).map_err(malformed)?;
    frame.advance(header);
    served.shape.check(version, &frame).map_err(malformed)?;
    Ok(Opened::Request(call, frame))
}

/// Decodes a body that `open` has checked.
pub(super) fn decode<M: Message + Decodable>(call: &Call, mut body: Bytes) -> Result<M, Refused> {
    M::decode(&mut body, call.version).map_err(|error| Refused::Malformed {
        api: call.api,
        version: call.version,
        why: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(api: i16, version: i16, rest: &[u8]) -> Bytes {
        let mut frame = api.to_be_bytes().to_vec();
        frame.extend_from_slice(&version.to_be_bytes());
        frame.extend_from_slice(&42i32.to_be_bytes());
        frame.extend_from_slice(rest);
        frame.into()
    }

    #[test]
    fn a_request_opens_with_and_without_tagged_fields_in_its_header() {
        for (version, rest) in [
            (1, &b"\0\x04kcat\0\0\0\x01\0\x01t"[..]),
            (9, b"\0\x04kcat\0\x02\x02t\0\0\0\0\0"),
            (9, b"\xff\xff\x01\x05\x01x\x02\x02t\0\0\0\0\0"),
        ] {
            let opened = open(frame(3, version, rest)).expect("well formed");
            let Opened::Request(call, body) = opened else {
                panic!("a request")
            };
            assert_eq!(
                (call.api, call.version, call.correlation_id),
                (ApiKey::Metadata, version, 42)
            );
            let request: kafka_protocol::messages::MetadataRequest =
                decode(&call, body).expect("decodes");
            let topics = request.topics.expect("named");
            assert_eq!(topics[0].name.as_ref().map(|n| n.as_str()), Some("t"));
        }
    }

    #[test]
    fn what_is_not_served_is_refused_by_name() {
        let refusal = |frame| open(frame).map(|_| ()).expect_err("refused").to_string();
        assert!(refusal(frame(11, 0, &[])).contains("API key 11"));
        assert!(refusal(frame(0, 2, &[])).contains("3 to 13 are served"));
        assert!(refusal(frame(3, 99, &[])).contains("version 99"));
        assert!(refusal(frame(3, 1, &[0xff, 0xff])).contains("ends before"));
        assert!(refusal(frame(3, -1, &[])).contains("version -1"));
    }

    #[test]
    fn a_too_new_api_versions_request_is_answered_in_version_0_whatever_follows() {
        let opened = open(frame(18, 77, &[0xff; 3])).expect("answered");
        let Opened::TooNewApiVersions(call) = opened else {
            panic!("too new")
        };
        assert_eq!((call.version, call.correlation_id), (0, 42));
    }
}
