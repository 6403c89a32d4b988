//! The one table of APIs that we serve. Dispatch, ApiVersions, and the tests of the codec all go by it.

use std::ops::RangeInclusive;

use super::message::{Message, Request};
use super::messages::*;

/// An API of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Api {
    /// Its key.
    pub key: ApiKey,
    /// Kafka's name of it.
    pub name: &'static str,
    /// The first version that is answered.
    pub min_version: i16,
    /// The last version that is answered.
    pub max_version: i16,
    /// The first version that ApiVersions names, which may be older than what is answered.
    pub advertised_min_version: i16,
    /// The first version with compact lengths and tagged fields; `None` if there is none.
    pub flexible_from: Option<i16>,
}

impl Api {
    /// Versions that are answered.
    #[must_use]
    pub fn served(&self) -> RangeInclusive<i16> {
        self.min_version..=self.max_version
    }

    /// Whether a version has compact lengths and tagged fields.
    #[must_use]
    pub fn flexible(&self, version: i16) -> bool {
        self.flexible_from.is_some_and(|from| version >= from)
    }

    /// Whether the response header of a version has tagged fields. That of ApiVersions never has: a client reads it
    /// before it knows what the broker speaks.
    #[must_use]
    pub fn flexible_response_header(&self, version: i16) -> bool {
        self.key != ApiKey::ApiVersions && self.flexible(version)
    }
}

/// Calls a macro with the table: rows of name, key, request, response, served versions, and the advertised minimum.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_api {
    ($callback:ident) => {
        $callback! {
            // Produce is advertised from 0 although Kafka 4 serves none below 3: librdkafka decides by that range whether
            // it may compress.
            Produce = 0, ProduceRequest, ProduceResponse, 3..=13, advertised 0;
            Fetch = 1, FetchRequest, FetchResponse, 4..=18, advertised 4;
            ListOffsets = 2, ListOffsetsRequest, ListOffsetsResponse, 1..=11, advertised 1;
            Metadata = 3, MetadataRequest, MetadataResponse, 0..=13, advertised 0;
            OffsetCommit = 8, OffsetCommitRequest, OffsetCommitResponse, 2..=10, advertised 2;
            OffsetFetch = 9, OffsetFetchRequest, OffsetFetchResponse, 1..=10, advertised 1;
            FindCoordinator = 10, FindCoordinatorRequest, FindCoordinatorResponse, 0..=6, advertised 0;
            JoinGroup = 11, JoinGroupRequest, JoinGroupResponse, 0..=9, advertised 0;
            Heartbeat = 12, HeartbeatRequest, HeartbeatResponse, 0..=4, advertised 0;
            LeaveGroup = 13, LeaveGroupRequest, LeaveGroupResponse, 0..=5, advertised 0;
            SyncGroup = 14, SyncGroupRequest, SyncGroupResponse, 0..=5, advertised 0;
            DescribeGroups = 15, DescribeGroupsRequest, DescribeGroupsResponse, 0..=6, advertised 0;
            ListGroups = 16, ListGroupsRequest, ListGroupsResponse, 0..=5, advertised 0;
            ApiVersions = 18, ApiVersionsRequest, ApiVersionsResponse, 0..=4, advertised 0;
            CreateTopics = 19, CreateTopicsRequest, CreateTopicsResponse, 2..=7, advertised 2;
            DeleteTopics = 20, DeleteTopicsRequest, DeleteTopicsResponse, 1..=6, advertised 1;
            DeleteRecords = 21, DeleteRecordsRequest, DeleteRecordsResponse, 0..=2, advertised 0;
            // InitProducerId 6 is not stable in Kafka yet: it belongs to two-phase commit.
            InitProducerId = 22, InitProducerIdRequest, InitProducerIdResponse, 0..=5, advertised 0;
            OffsetForLeaderEpoch = 23, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, 2..=4, advertised 2;
            DescribeConfigs = 32, DescribeConfigsRequest, DescribeConfigsResponse, 1..=4, advertised 1;
            AlterConfigs = 33, AlterConfigsRequest, AlterConfigsResponse, 0..=2, advertised 0;
            DescribeLogDirs = 35, DescribeLogDirsRequest, DescribeLogDirsResponse, 1..=5, advertised 1;
            CreatePartitions = 37, CreatePartitionsRequest, CreatePartitionsResponse, 0..=3, advertised 0;
            DeleteGroups = 42, DeleteGroupsRequest, DeleteGroupsResponse, 0..=2, advertised 0;
            IncrementalAlterConfigs = 44, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, 0..=1, advertised 0;
            OffsetDelete = 47, OffsetDeleteRequest, OffsetDeleteResponse, 0..=0, advertised 0;
            DescribeCluster = 60, DescribeClusterRequest, DescribeClusterResponse, 0..=2, advertised 0;
            DescribeProducers = 61, DescribeProducersRequest, DescribeProducersResponse, 0..=0, advertised 0;
            DescribeTopicPartitions = 75, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, 0..=0, advertised 0;
        }
    };
}

macro_rules! table {
    ($($name:ident = $key:literal, $request:ident, $response:ident, $min:literal..=$max:literal, advertised $advertised:literal;)*) => {
        /// The key of an API that we serve.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ApiKey {
            $(#[doc = concat!("Key ", $key)] $name = $key,)*
        }

        /// All APIs that we serve, by ascending key.
        pub static APIS: &[Api] = &[$(Api {
            key: ApiKey::$name,
            name: stringify!($name),
            min_version: $min,
            max_version: $max,
            advertised_min_version: $advertised,
            flexible_from: {
                let flexible = <$request as Message>::FLEXIBLE;
                if flexible.min <= flexible.max { Some(flexible.min) } else { None }
            },
        },)*];

        impl ApiKey {
            /// The API with this number, if we serve it.
            #[must_use]
            pub fn from_code(key: i16) -> Option<Self> {
                match key {
                    $($key => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its row in the table.
            #[must_use]
            pub fn api(self) -> &'static Api {
                let position = APIS.binary_search_by_key(&self, |api| api.key);
                &APIS[position.expect("every key has a row, and rows ascend")]
            }
        }

        $(
            impl Request for $request {
                const API: ApiKey = ApiKey::$name;
                type Response = $response;
            }

            const _: () = {
                let versions = <$request as Message>::VERSIONS;
                assert!(versions.min <= $min && $min <= $max && $max <= versions.max);
                assert!(versions.min == <$response as Message>::VERSIONS.min);
                assert!(versions.max == <$response as Message>::VERSIONS.max);
                assert!($advertised <= $min);
            };
        )*
    };
}

for_each_api!(table);

impl ApiKey {
    /// Its number on the wire.
    #[must_use]
    pub const fn code(self) -> i16 {
        self as i16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_ascend_and_are_found_by_key() {
        assert!(APIS.is_sorted_by(|a, b| a.key < b.key));
        for api in APIS {
            assert_eq!(api.key.api().name, api.name);
            assert_eq!(ApiKey::from_code(api.key.code()), Some(api.key));
        }
        assert_eq!(ApiKey::from_code(-1), None);
    }

    #[test]
    fn produce_is_advertised_from_zero() {
        let produce = ApiKey::Produce.api();
        assert_eq!((produce.advertised_min_version, produce.min_version), (0, 3));
    }
}
