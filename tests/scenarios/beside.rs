//! The two stores of objects, so that each test runs with both.

use harness::{Bucket, Fixture, Yard};

use crate::objects::{broker, lies};

pub(crate) enum Beside {
    Broker,
    Bucket(Box<Bucket>),
}

impl Beside {
    pub(crate) async fn bucket() -> Self {
        Self::Bucket(Box::new(Bucket::start().await))
    }

    pub(crate) async fn yard(&self, fixture: Fixture) -> Yard {
        match self {
            Self::Broker => Yard::start_with(fixture).await,
            Self::Bucket(bucket) => Yard::beside(bucket, fixture).await,
        }
    }

    /// How many pieces of objects lie there.
    pub(crate) async fn pieces(&self, yard: &Yard) -> u64 {
        match self {
            Self::Broker => lies(&broker(yard.broker.url()).await).await,
            Self::Bucket(bucket) => bucket.keys("").await.len() as u64,
        }
    }
}

/// Makes two tests of a function whose argument is the store of objects.
macro_rules! on_both {
    ($scenario:ident) => {
        mod $scenario {
            use super::Beside;

            #[tokio::test]
            async fn at_the_broker() {
                super::$scenario(Beside::Broker).await;
            }

            #[tokio::test]
            async fn in_a_bucket() {
                super::$scenario(Beside::bucket().await).await;
            }
        }
    };
}
pub(crate) use on_both;
