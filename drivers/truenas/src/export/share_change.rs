//! Changes of shares, each a step of a plan.

use async_trait::async_trait;
use driver_core::Call;

use super::gone;
use crate::api::nfs::{CreateNfsShare, DeleteNfsShare, UpdateNfsShare};
use crate::api::smb::{CreateSmbShare, DeleteSmbShare};
use crate::backend::Nas;
use crate::command::{Change, Made};
use crate::error::Error as ApiError;

/// A change of NFS shares.
#[derive(Debug)]
pub(super) enum NfsChange {
    /// Makes a share.
    Create(Box<CreateNfsShare>),
    /// Changes which clients a share lets in.
    Update(Box<UpdateNfsShare>),
    /// Removes one.
    Delete(i64),
}

/// A change of SMB shares.
#[derive(Debug)]
pub(super) enum SmbChange {
    /// Makes a share.
    Create(CreateSmbShare),
    /// Removes one.
    Delete(i64),
}

#[async_trait]
impl Change for NfsChange {
    fn doing(&self) -> String {
        match self {
            Self::Create(share) => format!("share {} by NFS", share.path),
            Self::Update(share) => format!("change the clients of NFS share {}", share.id),
            Self::Delete(id) => format!("remove NFS share {id}"),
        }
    }

    fn removes(&self) -> bool {
        matches!(self, Self::Delete(_))
    }

    async fn run(&self, nas: &Nas, call: &Call, _: &Made) -> Result<Option<i64>, ApiError> {
        match self {
            Self::Create(share) => nas
                .write(call, share.as_ref())
                .await
                .map(|made| Some(made.id)),
            Self::Update(share) => nas.write(call, share.as_ref()).await.map(|_| None),
            Self::Delete(id) => gone(nas.write(call, &DeleteNfsShare { id: *id }).await),
        }
    }
}

#[async_trait]
impl Change for SmbChange {
    fn doing(&self) -> String {
        match self {
            Self::Create(share) => format!("share {} by SMB", share.path),
            Self::Delete(id) => format!("remove SMB share {id}"),
        }
    }

    fn removes(&self) -> bool {
        matches!(self, Self::Delete(_))
    }

    async fn run(&self, nas: &Nas, call: &Call, _: &Made) -> Result<Option<i64>, ApiError> {
        match self {
            Self::Create(share) => nas.write(call, share).await.map(|made| Some(made.id)),
            Self::Delete(id) => gone(nas.write(call, &DeleteSmbShare { id: *id }).await),
        }
    }
}
