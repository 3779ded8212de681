package v1alpha1

// What csi-controller and csi-node tell each other through the container orchestrator and through a CacheVolume.
const (
	// PublishContextEpoch is the key in ControllerPublish's publish_context that holds the attachment's epoch, in decimal.
	// NodeStage refuses when the CacheVolume has another one by then.
	PublishContextEpoch = "escache.io/epoch"

	// What dev_connect needs of the volume, in the same place. Numbers are decimal; "0" means escached's default, an empty
	// image id that nobody has read it yet.
	PublishContextPool          = "escache.io/pool"
	PublishContextImage         = "escache.io/image"
	PublishContextImageID       = "escache.io/image-id"
	PublishContextCacheMode     = "escache.io/cache-mode"
	PublishContextHighWatermark = "escache.io/high-watermark"
	PublishContextLowWatermark  = "escache.io/low-watermark"
	PublishContextMaxDirtyAge   = "escache.io/max-dirty-age-seconds"

	// VolumeContextMkfsOptions is the key in a volume's volume_context that holds more options for mkfs, separated by blanks.
	// It is the StorageClass parameter of the same name.
	VolumeContextMkfsOptions = "mkfsOptions"

	// AnnotationFilesystem on a CacheVolume is csi-node's record of the filesystem it makes, as JSON. It is written before mkfs
	// begins and again after mkfs has ended: so a half-written filesystem is known to be the driver's own, and a volume that
	// was formatted once and reads blank now is never formatted again.
	AnnotationFilesystem = "escache.io/filesystem"
)
