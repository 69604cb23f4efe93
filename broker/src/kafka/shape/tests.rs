//! Requests of every API in every version, encoded by `kafka-protocol`, walked over here; then damaged.

use super::*;
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use proptest::prelude::*;

/// One request as bytes, and a decoder that says how many bytes it left.
struct Sample {
    name: &'static str,
    shape: &'static Shape,
    version: i16,
    bytes: Bytes,
    decode: fn(Bytes, i16) -> Option<usize>,
}

fn left_by<M: Decodable>(mut bytes: Bytes, version: i16) -> Option<usize> {
    M::decode(&mut bytes, version).ok().map(|_| bytes.len())
}

fn samples_of<M: Encodable + Decodable>(
    name: &'static str,
    shape: &'static Shape,
    versions: std::ops::RangeInclusive<i16>,
    build: impl Fn(i16) -> M,
) -> Vec<Sample> {
    let sample = |version| {
        let mut bytes = BytesMut::new();
        build(version)
            .encode(&mut bytes, version)
            .expect("encodable");
        Sample {
            name,
            shape,
            version,
            bytes: bytes.freeze(),
            decode: left_by::<M>,
        }
    };
    versions.map(sample).collect()
}

fn s(text: &'static str) -> StrBytes {
    StrBytes::from_static_str(text)
}

fn topic() -> TopicName {
    TopicName(s("orders"))
}

fn samples() -> Vec<Sample> {
    let id = uuid::Uuid::from_u128(7);
    let tag = || Bytes::from_static(b"new field");
    let tags = |flexible: bool| {
        flexible
            .then(|| (9, tag()))
            .into_iter()
            .collect::<std::collections::BTreeMap<i32, Bytes>>()
    };
    let mut all = Vec::new();
    all.extend(samples_of("ApiVersions", &API_VERSIONS, 0..=4, |v| {
        let request = ApiVersionsRequest::default();
        if v >= 3 {
            request
                .with_client_software_name(s("kcat"))
                .with_client_software_version(s("1.7"))
                .with_unknown_tagged_fields(tags(true))
        } else {
            request
        }
    }));
    all.extend(samples_of("Metadata", &METADATA, 0..=13, |v| {
        let topic = metadata_request::MetadataRequestTopic::default().with_name(Some(topic()));
        MetadataRequest::default()
            .with_topics(Some(vec![
                topic.clone().with_unknown_tagged_fields(tags(v >= 9)),
                topic,
            ]))
            .with_unknown_tagged_fields(tags(v >= 9))
    }));
    all.extend(samples_of("Metadata of all", &METADATA, 1..=13, |_| {
        MetadataRequest::default().with_topics(None)
    }));
    all.extend(samples_of("Produce", &PRODUCE, 3..=13, |v| {
        let data = produce_request::PartitionProduceData::default()
            .with_index(1)
            .with_records(Some(Bytes::from_static(b"records")));
        let mut topic_data = produce_request::TopicProduceData::default()
            .with_partition_data(vec![data.clone(), data.with_records(None)]);
        if v >= 13 {
            topic_data.topic_id = id;
        } else {
            topic_data.name = topic();
        }
        ProduceRequest::default()
            .with_acks(-1)
            .with_topic_data(vec![topic_data])
            .with_unknown_tagged_fields(tags(v >= 9))
    }));
    all.extend(samples_of("Fetch", &FETCH, 4..=18, |v| {
        let mut partition = fetch_request::FetchPartition::default().with_partition(3);
        let mut topic_data = fetch_request::FetchTopic::default();
        let mut forgotten = fetch_request::ForgottenTopic::default();
        if v >= 13 {
            topic_data.topic_id = id;
            forgotten.topic_id = id;
        } else {
            topic_data.topic = topic();
            forgotten.topic = topic();
        }
        forgotten.partitions = vec![1, 2, 3];
        if v >= 17 {
            partition.replica_directory_id = id;
        }
        if v >= 18 {
            partition.high_watermark = 5;
        }
        topic_data.partitions = vec![partition; 3];
        let mut request = FetchRequest::default().with_topics(vec![topic_data]);
        if v >= 7 {
            request.forgotten_topics_data = vec![forgotten];
        }
        if v >= 12 {
            request.cluster_id = Some(s("cluster"));
        }
        if v >= 15 {
            request.replica_state.replica_id = BrokerId(4);
        }
        request
    }));
    all.extend(samples_of("ListOffsets", &LIST_OFFSETS, 1..=10, |_| {
        let partition = list_offsets_request::ListOffsetsPartition::default().with_timestamp(-1);
        let topic = list_offsets_request::ListOffsetsTopic::default()
            .with_name(topic())
            .with_partitions(vec![partition; 2]);
        ListOffsetsRequest::default().with_topics(vec![topic; 2])
    }));
    all.extend(samples_of(
        "OffsetForLeaderEpoch",
        &OFFSET_FOR_LEADER_EPOCH,
        2..=4,
        |_| {
            let topic = offset_for_leader_epoch_request::OffsetForLeaderTopic::default()
                .with_topic(topic())
                .with_partitions(vec![Default::default(); 2]);
            OffsetForLeaderEpochRequest::default().with_topics(vec![topic])
        },
    ));
    all.extend(samples_of(
        "InitProducerId",
        &INIT_PRODUCER_ID,
        0..=5,
        |_| InitProducerIdRequest::default(),
    ));
    all.extend(samples_of(
        "FindCoordinator",
        &FIND_COORDINATOR,
        0..=6,
        |v| {
            let request = FindCoordinatorRequest::default();
            if v >= 4 {
                request.with_coordinator_keys(vec![s("a"), s("b")])
            } else {
                request.with_key(s("group"))
            }
        },
    ));
    all.extend(samples_of("CreateTopics", &CREATE_TOPICS, 2..=7, |_| {
        let assignment = create_topics_request::CreatableReplicaAssignment::default()
            .with_broker_ids(vec![BrokerId(1), BrokerId(2)]);
        let config = create_topics_request::CreatableTopicConfig::default()
            .with_name(s("segment.bytes"))
            .with_value(Some(s("1000")));
        let topic = create_topics_request::CreatableTopic::default()
            .with_name(topic())
            .with_assignments(vec![assignment; 2])
            .with_configs(vec![config.clone(), config.with_value(None)]);
        CreateTopicsRequest::default().with_topics(vec![topic])
    }));
    all.extend(samples_of("DeleteTopics", &DELETE_TOPICS, 1..=6, |v| {
        let request = DeleteTopicsRequest::default();
        if v >= 6 {
            let by_id = delete_topics_request::DeleteTopicState::default().with_topic_id(id);
            request.with_topics(vec![
                by_id.clone().with_name(None),
                by_id.with_name(Some(topic())),
            ])
        } else {
            request.with_topic_names(vec![topic(), topic()])
        }
    }));
    all.extend(samples_of(
        "CreatePartitions",
        &CREATE_PARTITIONS,
        0..=3,
        |_| {
            let assignment = create_partitions_request::CreatePartitionsAssignment::default()
                .with_broker_ids(vec![BrokerId(1)]);
            let topic = create_partitions_request::CreatePartitionsTopic::default()
                .with_name(topic())
                .with_assignments(Some(vec![assignment; 2]));
            CreatePartitionsRequest::default()
                .with_topics(vec![topic.clone(), topic.with_assignments(None)])
        },
    ));
    all.extend(samples_of(
        "DescribeConfigs",
        &DESCRIBE_CONFIGS,
        1..=4,
        |_| {
            let resource = describe_configs_request::DescribeConfigsResource::default()
                .with_resource_name(s("orders"))
                .with_configuration_keys(Some(vec![s("a"), s("b")]));
            DescribeConfigsRequest::default().with_resources(vec![
                resource.clone(),
                resource.with_configuration_keys(None),
            ])
        },
    ));
    all.extend(samples_of(
        "DescribeCluster",
        &DESCRIBE_CLUSTER,
        0..=2,
        |_| DescribeClusterRequest::default(),
    ));
    all.extend(samples_of("ElectLeaders", &ELECT_LEADERS, 0..=2, |_| {
        let partitions = elect_leaders_request::TopicPartitions::default()
            .with_topic(topic())
            .with_partitions(vec![0, 1]);
        ElectLeadersRequest::default().with_topic_partitions(Some(vec![partitions]))
    }));
    all.extend(samples_of("AlterConfigs", &ALTER_CONFIGS, 0..=2, |_| {
        let config = alter_configs_request::AlterableConfig::default().with_name(s("a"));
        let resource = alter_configs_request::AlterConfigsResource::default()
            .with_resource_name(s("orders"))
            .with_configs(vec![config; 2]);
        AlterConfigsRequest::default().with_resources(vec![resource])
    }));
    all.extend(samples_of(
        "IncrementalAlterConfigs",
        &INCREMENTAL_ALTER_CONFIGS,
        0..=1,
        |_| {
            let config =
                incremental_alter_configs_request::AlterableConfig::default().with_name(s("a"));
            let resource = incremental_alter_configs_request::AlterConfigsResource::default()
                .with_resource_name(s("orders"))
                .with_configs(vec![config; 2]);
            IncrementalAlterConfigsRequest::default().with_resources(vec![resource])
        },
    ));
    all
}

#[test]
fn every_request_is_walked_to_its_end_and_no_further() {
    for sample in samples() {
        let what = format!("{} v{}", sample.name, sample.version);
        let walked = sample.shape.check(sample.version, &sample.bytes);
        assert_eq!(walked, Ok(sample.bytes.len()), "{what}");
        let longer = [&sample.bytes[..], b"more"].concat();
        assert_eq!(
            sample.shape.check(sample.version, &longer),
            Ok(sample.bytes.len()),
            "{what}"
        );
        for cut in 0..sample.bytes.len() {
            assert!(
                sample
                    .shape
                    .check(sample.version, &sample.bytes[..cut])
                    .is_err(),
                "{what} cut at {cut}"
            );
        }
    }
}

#[test]
fn claims_without_bytes_are_refused() {
    // A metadata request for two thousand million topics, plain and compact.
    assert_eq!(
        METADATA.check(1, &[0x7f, 0xff, 0xff, 0xff]),
        Err(Misshapen::Elements)
    );
    assert_eq!(
        METADATA.check(9, &[0xff, 0xff, 0xff, 0xff, 0x07]),
        Err(Misshapen::Elements)
    );
    assert_eq!(METADATA.check(1, &[0x80, 0, 0, 0]), Err(Misshapen::Length));
    assert_eq!(METADATA.check(1, &[0, 0, 0, 9]), Err(Misshapen::Short));
    // A varint of more than 32 bits.
    assert_eq!(
        METADATA.check(9, &[0xff, 0xff, 0xff, 0xff, 0x1f]),
        Err(Misshapen::Length)
    );
}

#[test]
fn tagged_fields_must_be_in_order_and_of_their_size() {
    let request = |tags: &[u8]| [&[0, 0, 0][..], tags].concat();
    for (tags, expected) in [
        (&[0][..], Ok(())),
        (&[1, 5, 1, 0xaa], Ok(())),
        (&[2, 5, 0, 6, 0], Ok(())),
        (&[2, 5, 0, 5, 0], Err(Misshapen::Tags)),
        (&[2, 5, 0, 4, 0], Err(Misshapen::Tags)),
        (&[1, 5, 9, 0xaa], Err(Misshapen::Tags)),
        (&[65], Err(Misshapen::Tags)),
    ] {
        let checked = METADATA.check(11, &request(tags)).map(|_| ());
        assert_eq!(checked, expected, "{tags:?}");
    }
    // A known field whose size is not its own: the decoder would go on at another place than announced.
    let fetch = FetchRequest::default().with_cluster_id(Some(s("c")));
    let mut bytes = BytesMut::new();
    fetch.encode(&mut bytes, 12).expect("encodable");
    assert!(FETCH.check(12, &bytes).is_ok());
    let size_at = bytes.len() - 3;
    assert_eq!(bytes[size_at], 2);
    bytes[size_at] = 3;
    bytes.extend_from_slice(b"x");
    assert_eq!(FETCH.check(12, &bytes), Err(Misshapen::Tags));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_passes_is_decoded_over_exactly_the_bytes_walked(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        garbage in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        for sample in samples() {
            let mut bytes = sample.bytes.to_vec();
            for (at, value) in &damage {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = *value;
                }
            }
            for bytes in [bytes, garbage.clone()] {
                let Ok(walked) = sample.shape.check(sample.version, &bytes) else { continue };
                let left = bytes.len() - walked;
                // It may still be refused: a string that is not UTF-8, a "none" where none may be.
                if let Some(decoder_left) = (sample.decode)(bytes.into(), sample.version) {
                    prop_assert_eq!(decoder_left, left, "{} v{}", sample.name, sample.version);
                }
            }
        }
    }
}
