//! ApiVersions: what is served here. The first request of most clients, and the one that must be answered even when it is
//! newer than this broker (KIP-511). Newer clients also say whom they mean to reach, so that they notice when an address has
//! passed to another broker (KIP-1242).

use bytes::{Buf, Bytes};
use epoka_proto::error::ErrorCode;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse};

use super::connection::Reply;
use super::request::{APIS, Api, Call, Refused, decode};
use super::response::Response;
use super::shape::{Misshapen, take_text};
use crate::node::Node;

/// The newest version that `kafka-protocol` has. The answer to the next one is the same.
const NEWEST_KNOWN: i16 = 4;

/// Answers with what is served here, unless the client means another broker.
pub(super) fn begin(node: &Node, call: Call, body: Bytes) -> Result<Reply, Refused> {
    let response = if call.version > NEWEST_KNOWN {
        let whom = Whom::read(body).map_err(|why| Refused::Malformed {
            api: call.api,
            version: call.version,
            why: why.to_string(),
        })?;
        match whom.check(&node.image().cluster_id, node.me().0) {
            Ok(()) => answer(),
            Err(error) => ApiVersionsResponse::default().with_error_code(error.code()),
        }
    } else {
        decode::<ApiVersionsRequest>(&call, body)?;
        answer()
    };
    let version = call.version.min(NEWEST_KNOWN);
    Ok(Box::pin(async move {
        Response::encode(&Call { version, ..call }, &response).map(Some)
    }))
}

/// Whom a client believes to have reached; nobody in particular on its first connection.
#[derive(Debug, PartialEq, Eq)]
struct Whom {
    cluster: Option<Bytes>,
    node: Option<i32>,
}

impl Whom {
    /// Reads the body of a request of version 5.
    fn read(mut body: Bytes) -> Result<Self, Misshapen> {
        for _name_and_version in 0..2 {
            take_text(&mut body)?.ok_or(Misshapen::Length)?;
        }
        let cluster = take_text(&mut body)?;
        let node = body.try_get_i32().map_err(|_| Misshapen::Short)?;
        Ok(Self {
            cluster,
            node: (node != -1).then_some(node),
        })
    }

    fn check(&self, cluster: &str, me: i32) -> Result<(), ErrorCode> {
        match (&self.cluster, self.node) {
            (None, None) => Ok(()),
            (Some(meant), Some(node)) if *meant == cluster && node == me => Ok(()),
            (Some(_), Some(_)) => Err(ErrorCode::RebootstrapRequired),
            _ => Err(ErrorCode::InvalidRequest),
        }
    }
}

/// Everything served, with its versions.
fn answer() -> ApiVersionsResponse {
    ApiVersionsResponse::default().with_api_keys(APIS.iter().map(advertised).collect())
}

/// UNSUPPORTED_VERSION, and which versions of this API to ask in.
pub(super) fn too_new() -> ApiVersionsResponse {
    let own = APIS.iter().filter(|api| api.key == ApiKey::ApiVersions);
    ApiVersionsResponse::default()
        .with_error_code(ErrorCode::UnsupportedVersion.code())
        .with_api_keys(own.map(advertised).collect())
}

fn advertised(api: &Api) -> ApiVersion {
    // librdkafka derives the codecs it may use from Produce versions that start at 0; Kafka 4 names them for its sake and
    // refuses them too (KAFKA-18659).
    let min = if api.key == ApiKey::Produce {
        0
    } else {
        api.min
    };
    ApiVersion::default()
        .with_api_key(api.key as i16)
        .with_min_version(min)
        .with_max_version(api.max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(version: i16) -> Call {
        Call {
            api: ApiKey::ApiVersions,
            version,
            correlation_id: 7,
        }
    }

    #[test]
    fn a_too_new_request_gets_the_bytes_every_client_can_read() {
        let response = Response::encode(&call(0), &too_new())
            .expect("encodable")
            .to_bytes();
        let golden = [
            &[0, 0, 0, 16][..], // length
            &[0, 0, 0, 7],      // correlation id
            &[0, 35],           // UNSUPPORTED_VERSION
            &[0, 0, 0, 1],      // one API
            &[0, 18, 0, 0, 0, 5],
        ]
        .concat();
        assert_eq!(response, golden);
    }

    #[test]
    fn the_header_of_a_flexible_answer_has_no_tagged_fields() {
        let response = Response::encode(&call(3), &answer())
            .expect("encodable")
            .to_bytes();
        // Correlation id, then at once the error code and the compact count of APIs.
        assert_eq!(response[4..10], [0, 0, 0, 7, 0, 0]);
        assert_eq!(usize::from(response[10]), APIS.len() + 1);
    }

    /// What real Kafka 4.4 answers in each of these cases.
    #[test]
    fn a_client_that_means_another_broker_is_told_to_look_again() {
        let ours = || Some(Bytes::from_static(b"A"));
        for (cluster, node, expected) in [
            (None, None, Ok(())),
            (ours(), Some(1), Ok(())),
            (ours(), Some(2), Err(ErrorCode::RebootstrapRequired)),
            (
                Some("B".into()),
                Some(1),
                Err(ErrorCode::RebootstrapRequired),
            ),
            (
                Some("".into()),
                Some(1),
                Err(ErrorCode::RebootstrapRequired),
            ),
            (ours(), None, Err(ErrorCode::InvalidRequest)),
            (None, Some(1), Err(ErrorCode::InvalidRequest)),
        ] {
            let whom = Whom { cluster, node };
            assert_eq!(whom.check("A", 1), expected, "{whom:?}");
        }
        let read = |body: &'static [u8]| Whom::read(Bytes::from_static(body));
        let whom = read(b"\x05java\x044.4\x02A\0\0\0\x02\0").expect("well formed");
        assert_eq!((whom.cluster, whom.node), (ours(), Some(2)));
        let whom = read(b"\x05java\x01\x80\x80\0\xff\xff\xff\xff\0").expect("well formed");
        assert_eq!((whom.cluster, whom.node), (None, None));
        assert!(read(b"\x05java\x044.4\x02A\0\0\0").is_err());
        assert!(read(b"\x05java\0\0\xff\xff\xff\xff\0").is_err()); // a version must be named
        assert!(read(b"\x05java\x044.4\xff\xff\xff\xff\x0fA\0\0\0\x02").is_err());
        let refusal = ApiVersionsResponse::default().with_error_code(129);
        let refusal = Response::encode(&call(NEWEST_KNOWN), &refusal);
        let refusal = refusal.expect("encodable").to_bytes();
        let golden = [0, 0, 0, 12, 0, 0, 0, 7, 0, 0x81, 1, 0, 0, 0, 0, 0];
        assert_eq!(*refusal, golden);
    }

    #[test]
    fn what_librdkafka_derives_its_features_from_is_advertised() {
        let answer = answer();
        let range = |key: ApiKey| {
            let api = answer.api_keys.iter().find(|a| a.api_key == key as i16);
            api.map(|a| (a.min_version, a.max_version))
                .expect("advertised")
        };
        assert_eq!(range(ApiKey::Produce).0, 0); // lz4 and older message formats (KAFKA-18659)
        assert!(range(ApiKey::Produce).1 >= 7 && range(ApiKey::Fetch).1 >= 10); // zstd
        assert_eq!(range(ApiKey::FindCoordinator).0, 0); // lz4
        assert_eq!(range(ApiKey::InitProducerId).0, 0); // idempotence
        let groups = [ApiKey::JoinGroup, ApiKey::OffsetCommit, ApiKey::OffsetFetch];
        assert!(
            answer
                .api_keys
                .iter()
                .all(|a| groups.iter().all(|g| a.api_key != *g as i16))
        );
    }
}
