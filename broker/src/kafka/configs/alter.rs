//! AlterConfigs (all of a resource's overrides at once) and IncrementalAlterConfigs (one by one), passed on to the controller.

use std::collections::BTreeMap;
use std::sync::Arc;

use epoka_proto::config::{Kind, topic_key};
use epoka_proto::error::ErrorCode;
use epoka_proto::metadata::Image;
use epoka_proto::v1;
use kafka_protocol::messages::alter_configs_response::AlterConfigsResourceResponse as Replaced;
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse as Changed;
use kafka_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};

use super::{BROKER, TOPIC, topic_key_of};
use crate::kafka::lookup::{message, no_controller};
use crate::kafka::topics::taken_up;
use crate::node::Node;

/// Why a resource was not changed.
type Refusal = (ErrorCode, String);

/// What a request does to one key.
struct Wish<'a> {
    key: &'a str,
    operation: Operation,
    value: Option<&'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Set,
    Delete,
    /// Adds words to a list.
    Append,
    /// Takes words out of a list.
    Subtract,
}

impl Operation {
    fn from_wire(number: i8) -> Option<Self> {
        [Self::Set, Self::Delete, Self::Append, Self::Subtract]
            .get(usize::try_from(number).ok()?)
            .copied()
    }
}

/// Replaces the overrides of resources.
pub(in crate::kafka) async fn replace(
    node: &Node,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse {
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in request.resources {
        let image = node.image();
        let given = resource.configs.iter().map(|c| Wish {
            key: &c.name,
            operation: Operation::Set,
            value: c.value.as_deref(),
        });
        let outcome = match scope(&image, resource.resource_type, &resource.resource_name) {
            Err(refusal) => Err(refusal),
            Ok(scope) => match changes(&image, &scope, given) {
                Err(refusal) => Err(refusal),
                Ok(mut changes) => {
                    changes.extend(others_reset(&image, &scope, &changes));
                    apply(node, &scope, changes, request.validate_only).await
                }
            },
        };
        let (error, why) = outcome
            .err()
            .map_or((0, String::new()), |(e, why)| (e.code(), why));
        responses.push(
            Replaced::default()
                .with_error_code(error)
                .with_error_message(message(&why))
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name),
        );
    }
    AlterConfigsResponse::default().with_responses(responses)
}

/// Changes single overrides of resources.
pub(in crate::kafka) async fn change(
    node: &Node,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in request.resources {
        let image = node.image();
        let wishes: Option<Vec<Wish<'_>>> = resource
            .configs
            .iter()
            .map(|c| {
                Some(Wish {
                    key: &c.name,
                    operation: Operation::from_wire(c.config_operation)?,
                    value: c.value.as_deref(),
                })
            })
            .collect();
        let unknown = || {
            (
                ErrorCode::InvalidRequest,
                "an operation that does not exist".to_owned(),
            )
        };
        let outcome = match scope(&image, resource.resource_type, &resource.resource_name) {
            Err(refusal) => Err(refusal),
            Ok(scope) => match wishes
                .ok_or_else(unknown)
                .and_then(|w| changes(&image, &scope, w.into_iter()))
            {
                Err(refusal) => Err(refusal),
                Ok(changes) => apply(node, &scope, changes, request.validate_only).await,
            },
        };
        let (error, why) = outcome
            .err()
            .map_or((0, String::new()), |(e, why)| (e.code(), why));
        responses.push(
            Changed::default()
                .with_error_code(error)
                .with_error_message(message(&why))
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name),
        );
    }
    IncrementalAlterConfigsResponse::default().with_responses(responses)
}

/// Whose overrides are meant: a topic's, or the cluster-wide ones.
type Scope = Option<Arc<str>>;

fn scope(image: &Image, resource_type: i8, name: &str) -> Result<Scope, Refusal> {
    match resource_type {
        TOPIC if image.topic(name).is_none() => {
            Err((ErrorCode::UnknownTopicOrPartition, format!("there is no topic '{name}'")))
        }
        TOPIC => Ok(Some(name.into())),
        BROKER if name.is_empty() => Ok(None),
        BROKER => Err((
            ErrorCode::InvalidRequest,
            "a broker's own settings change with its next start only; the cluster-wide defaults are those of the broker \
             without a name"
                .to_owned(),
        )),
        other => Err((
            ErrorCode::InvalidRequest,
            format!("resource type {other} has no configuration here"),
        )),
    }
}

fn overrides<'a>(image: &'a Image, scope: &Scope) -> Option<&'a BTreeMap<String, String>> {
    image.configs.get(scope)
}

fn changes<'a>(
    image: &Image,
    scope: &Scope,
    wishes: impl Iterator<Item = Wish<'a>>,
) -> Result<Vec<v1::ConfigChange>, Refusal> {
    wishes.map(|wish| change_of(image, scope, &wish)).collect()
}

fn change_of(image: &Image, scope: &Scope, wish: &Wish<'_>) -> Result<v1::ConfigChange, Refusal> {
    let key = match scope {
        Some(_) => wish.key,
        None => topic_key_of(wish.key),
    };
    let given = || {
        let missing = || {
            (
                ErrorCode::InvalidConfig,
                format!("{} has no value", wish.key),
            )
        };
        wish.value.ok_or_else(missing)
    };
    let value = match wish.operation {
        Operation::Delete => None,
        Operation::Set => Some(given()?.to_owned()),
        list => {
            let known = topic_key(key);
            let is_list = known.is_some_and(|k| matches!(k.kind, Kind::List | Kind::ListOf(_)));
            if !is_list {
                return Err((
                    ErrorCode::InvalidConfig,
                    format!("{} is not a list", wish.key),
                ));
            }
            let own = overrides(image, scope)
                .and_then(|o| o.get(key))
                .map(String::as_str);
            let current = own.or_else(|| known.map(|k| k.default)).unwrap_or_default();
            Some(edited(current, given()?, list))
        }
    };
    Ok(v1::ConfigChange {
        topic: scope.as_deref().unwrap_or_default().to_owned(),
        key: key.to_owned(),
        value,
    })
}

/// A list with words added or taken out.
fn edited(current: &str, words: &str, operation: Operation) -> String {
    fn split(list: &str) -> impl Iterator<Item = &str> {
        list.split(',').map(str::trim).filter(|w| !w.is_empty())
    }
    let mut list: Vec<&str> = split(current).collect();
    list.retain(|word| !split(words).any(|w| w == *word));
    if operation == Operation::Append {
        list.extend(split(words));
    }
    list.join(",")
}

/// Resets of the overrides that a replacement does not mention.
fn others_reset(image: &Image, scope: &Scope, given: &[v1::ConfigChange]) -> Vec<v1::ConfigChange> {
    let keys = overrides(image, scope).into_iter().flat_map(BTreeMap::keys);
    keys.filter(|key| given.iter().all(|g| g.key != **key))
        .map(|key| v1::ConfigChange {
            topic: scope.as_deref().unwrap_or_default().to_owned(),
            key: key.clone(),
            value: None,
        })
        .collect()
}

async fn apply(
    node: &Node,
    scope: &Scope,
    changes: Vec<v1::ConfigChange>,
    validate_only: bool,
) -> Result<(), Refusal> {
    if changes.is_empty() {
        return Ok(());
    }
    let request = v1::AlterConfigsRequest {
        changes: changes.clone(),
        validate_only,
    };
    let answer = node.controller().alter_configs(request).await;
    let answer = answer.map_err(|status| no_controller(&status))?;
    for result in answer.topics {
        ErrorCode::from_wire(result.error as i16).map_err(|error| (error, result.message))?;
    }
    if !validate_only {
        taken_up(node, |image| {
            let now = overrides(image, scope);
            changes
                .iter()
                .all(|c| now.and_then(|o| o.get(&c.key)) == c.value.as_ref())
        })
        .await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use epoka_proto::ids::TopicId;
    use epoka_proto::metadata::Record;

    fn image() -> Image {
        let mut image = Image::default();
        image.apply(&Record::Topic {
            name: "orders".into(),
            id: TopicId(uuid::Uuid::from_u128(1)),
        });
        image.apply(&Record::Config {
            topic: Some("orders".into()),
            key: "retention.ms".into(),
            value: Some("5".into()),
        });
        image
    }

    fn one(
        scope: &Scope,
        key: &str,
        operation: Operation,
        value: Option<&str>,
    ) -> Result<(String, Option<String>), ErrorCode> {
        let wish = Wish {
            key,
            operation,
            value,
        };
        change_of(&image(), scope, &wish)
            .map(|c| (c.key, c.value))
            .map_err(|(e, _)| e)
    }

    #[test]
    fn lists_are_edited_and_other_keys_are_not_lists() {
        let topic = scope(&image(), TOPIC, "orders").expect("exists");
        let ok = |key: &str, value: &str| Ok((key.to_owned(), Some(value.to_owned())));
        let append = one(&topic, "cleanup.policy", Operation::Append, Some("compact"));
        assert_eq!(append, ok("cleanup.policy", "delete,compact"));
        let subtract = one(
            &topic,
            "cleanup.policy",
            Operation::Subtract,
            Some("delete"),
        );
        assert_eq!(subtract, ok("cleanup.policy", ""));
        let not_a_list = one(&topic, "retention.ms", Operation::Append, Some("1"));
        assert_eq!(not_a_list, Err(ErrorCode::InvalidConfig));
        assert_eq!(
            one(&topic, "retention.ms", Operation::Set, None),
            Err(ErrorCode::InvalidConfig)
        );
        let delete = one(&topic, "retention.ms", Operation::Delete, None);
        assert_eq!(delete, Ok(("retention.ms".to_owned(), None)));
    }

    #[test]
    fn broker_wide_keys_become_the_topic_keys_they_give_defaults_to() {
        let cluster = scope(&image(), BROKER, "").expect("the defaults");
        let set = one(&cluster, "log.retention.ms", Operation::Set, Some("9"));
        assert_eq!(set, Ok(("retention.ms".to_owned(), Some("9".to_owned()))));
        assert!(scope(&image(), BROKER, "1").is_err());
        assert!(scope(&image(), TOPIC, "nothing").is_err());
        assert!(scope(&image(), 8, "1").is_err());
    }

    #[test]
    fn a_replacement_resets_what_it_does_not_mention() {
        let topic = scope(&image(), TOPIC, "orders").expect("exists");
        let reset = others_reset(&image(), &topic, &[]);
        assert_eq!(
            (reset[0].key.as_str(), &reset[0].value),
            ("retention.ms", &None)
        );
        let given = v1::ConfigChange {
            topic: "orders".into(),
            key: "retention.ms".into(),
            value: Some("6".into()),
        };
        assert!(others_reset(&image(), &topic, &[given]).is_empty());
    }
}
