//! IncrementalAlterConfigs 0–1: changes single configurations of topics: set, delete, append to a list, subtract from it
//! (KIP-339).
//!
//! Differences from Kafka: broker configurations can't be changed while the broker runs, and say so.

use std::collections::HashSet;

use kaas_proto::control::{ConfigChange, ConfigOperation};
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};

use crate::config_resource::{self, Alteration};
use crate::context::{Call, Handle};
use crate::leaders::Refusal;

impl Handle for IncrementalAlterConfigsRequest {
    async fn handle(self, call: &Call) -> IncrementalAlterConfigsResponse {
        let alteration = |resource: &AlterConfigsResource| Alteration {
            kind: resource.resource_type,
            name: resource.resource_name.clone(),
            change: change(resource),
        };
        let changes = self.resources.iter().map(alteration).collect();
        let outcomes = config_resource::alter(call, changes, self.validate_only).await;
        let responses = self.resources.into_iter().zip(outcomes).map(|(resource, outcome)| {
            let (error_code, error_message) = config_resource::told(outcome);
            AlterConfigsResourceResponse {
                error_code,
                error_message,
                resource_type: resource.resource_type,
                resource_name: resource.resource_name,
            }
        });
        IncrementalAlterConfigsResponse { responses: responses.collect(), ..Default::default() }
    }
}

fn change(resource: &AlterConfigsResource) -> Result<ConfigChange, Refusal> {
    let mut names = HashSet::new();
    let operations = resource.configs.iter().map(|config| {
        if !names.insert(&config.name) {
            return Err(Refusal::new(ErrorCode::InvalidRequest, format!("{} appears twice", config.name)));
        }
        Ok((config.name.to_string(), operation(config)?))
    });
    Ok(ConfigChange::Incremental(operations.collect::<Result<_, _>>()?))
}

fn operation(config: &AlterableConfig) -> Result<ConfigOperation, Refusal> {
    let value = || match &config.value {
        Some(value) => Ok(value.to_string()),
        None => Err(Refusal::new(ErrorCode::InvalidRequest, format!("{} has no value", config.name))),
    };
    match config.config_operation {
        0 => Ok(ConfigOperation::Set(value()?)),
        1 => Ok(ConfigOperation::Delete),
        2 => Ok(ConfigOperation::Append(value()?)),
        3 => Ok(ConfigOperation::Subtract(value()?)),
        other => {
            let message = format!("{}: there is no operation {other}, only 0 to 3", config.name);
            Err(Refusal::new(ErrorCode::InvalidRequest, message))
        }
    }
}
