#!/usr/bin/env bash
# The steps of a release. .github/workflows/release.yml calls them one by one; `make release-dry` calls all of them, but only
# prints the commands that would upload.
#
#   deploy/release.sh check TAG            checks that the tag is the version, that the changelog has it, and that there is a licence
#   deploy/release.sh package              writes dist/: wheel, source distribution, SBOM, checksums
#   deploy/release.sh smoke                classifies a digit with the wheel in a new environment
#   deploy/release.sh notes                prints the version's section of the changelog
#   deploy/release.sh image VARIANT ARCH   builds and pushes NAME:VERSION-VARIANT-ARCH, with SBOM and provenance
#   deploy/release.sh index VARIANT        joins the architectures of a variant as NAME:VERSION-VARIANT, and signs it
#   deploy/release.sh publish              uploads dist/ to the package index, and creates the release
#   deploy/release.sh dry-run              runs all steps without uploads
#
# NAME is the name of the image, such as ghcr.io/owner/convoy. With DRY=1, uploads are printed, not run, and images are
# built only if Docker runs, for its own architecture.
set -euo pipefail
cd "$(dirname "$0")/.."

VARIANTS=(cpu cuda12 cuda13)
ARCHITECTURES=(amd64 arm64)
UV="${UV:-uv}"
NAME="${NAME:-ghcr.io/owner/convoy}"
VERSION="$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' models/__init__.py)"
SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --pretty=%ct)}"
export SOURCE_DATE_EPOCH

fail() {
    echo "release: $*" >&2
    exit 1
}

# Runs a command that changes another system, or with DRY=1 prints it.
upload() {
    if [ -n "${DRY:-}" ]; then
        printf 'would run:'
        printf ' %q' "$@"
        printf '\n'
    else
        "$@"
    fi
}

one_of() {
    local wanted="$1" each
    shift
    for each in "$@"; do [ "$each" = "$wanted" ] && return; done
    fail "there is no $wanted; there are $*"
}

check() {
    local tag="${1:-}" wrong=0
    problem() {
        echo "release: $*" >&2
        wrong=1
    }
    compgen -G 'LICENSE*' >/dev/null || problem "there is no LICENSE: the owner of the project must choose a licence and \
add its text as the file LICENSE; without one, what is released may not be used"
    [ "$tag" = "v$VERSION" ] || problem "the tag is $tag, but models/__init__.py says $VERSION: tag v$VERSION"
    grep -q "^## \[$VERSION\]" CHANGELOG.md || problem "CHANGELOG.md has no part [$VERSION]: give Unreleased this name"
    [ -z "$(git status --porcelain)" ] || problem "there are changes that are not committed"
    return "$wrong"
}

package() {
    rm -rf dist
    "$UV" build --quiet --out-dir dist
    "$UV" tool run --quiet --from "$(grep -o '^cyclonedx-bom==[^ ]*' deploy/locks/build.txt)" cyclonedx-py requirements \
        --pyproject pyproject.toml --output-reproducible --output-file dist/sbom.cdx.json deploy/locks/cpu.txt
    (cd dist && rm -f .gitignore && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
}

smoke() {
    local sample="$PWD/models/digits/samples/3_ink_on_paper.jpg" wheel
    wheel="$(echo "$PWD"/dist/*.whl)"
    (cd / && "$UV" tool run --quiet --isolated --constraints "$OLDPWD/constraints.txt" --from "$wheel" \
        convoy classify digits "$sample")
}

notes() {
    awk -v part="## [$VERSION]" 'index($0, "## [") == 1 { inside = index($0, part) == 1; next } inside' CHANGELOG.md
}

image() {
    local variant="${1:-}" arch="${2:-}" extra build
    one_of "$variant" "${VARIANTS[@]}"
    one_of "$arch" "${ARCHITECTURES[@]}"
    extra="${variant#cpu}"
    build=(docker buildx build --platform "linux/$arch" --build-arg "EXTRA=$extra" --build-arg "VERSION=$VERSION"
        --build-arg "REVISION=$(git rev-parse HEAD)" --build-arg "CREATED=$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)"
        --provenance mode=max --sbom true --tag "$NAME:$VERSION-$variant-$arch")
    if [ -n "${DRY:-}" ] && [ "$arch" = "$(this_architecture)" ] && docker info >/dev/null 2>&1; then
        "${build[@]}" --output type=cacheonly .
    else
        upload "${build[@]}" --push .
    fi
}

this_architecture() {
    case "$(uname -m)" in x86_64) echo amd64 ;; aarch64) echo arm64 ;; esac
}

index() {
    local variant="${1:-}" tag arch parts=() tags=()
    one_of "$variant" "${VARIANTS[@]}"
    tag="$NAME:$VERSION-$variant"
    for arch in "${ARCHITECTURES[@]}"; do parts+=("$tag-$arch"); done
    tags=(--tag "$tag")
    [ "$variant" != cpu ] || tags+=(--tag "$NAME:$VERSION" --tag "$NAME:latest")
    upload docker buildx imagetools create "${tags[@]}" "${parts[@]}"
    local digest="sha256:..."
    [ -n "${DRY:-}" ] || digest="$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$tag")"
    upload cosign sign --yes "$NAME@$digest"
    # The next step of the workflow attests this digest.
    [ -z "${GITHUB_OUTPUT:-}" ] || echo "digest=$digest" >>"$GITHUB_OUTPUT"
}

publish() {
    upload "$UV" publish --trusted-publishing always dist/*.whl dist/*.tar.gz
    upload gh release create "v$VERSION" --verify-tag --title "$VERSION" --notes "$(notes)" dist/*
}

dry_run() {
    local DRY=1 variant arch failed=""
    (check "v$VERSION") || failed=1
    package
    smoke
    for variant in "${VARIANTS[@]}"; do
        for arch in "${ARCHITECTURES[@]}"; do image "$variant" "$arch"; done
        index "$variant"
    done
    publish
    [ -z "$failed" ] || fail "all but the uploads was tried, and a release would stop at its first step: see above"
}

step="${1:-}"
shift || true
one_of "$step" check package smoke notes image index publish dry-run
"${step/-/_}" "$@"
