//! ApiVersions: what is served here. The first request of most clients, and the one that must be answered even when it is
//! newer than this broker (KIP-511).

use epoka_proto::error::ErrorCode;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::{ApiKey, ApiVersionsResponse};

use super::request::{APIS, Api};

/// Everything served, with its versions.
pub(super) fn answer() -> ApiVersionsResponse {
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
    use crate::kafka::request::Call;
    use crate::kafka::response::Response;

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
            &[0, 18, 0, 0, 0, 4],
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
