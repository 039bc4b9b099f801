# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# What scripts/setup is made of; it sets here, cache, cuda_arch and jobs. Every result is built beside its place and
# moved there when complete, so an interrupted run leaves nothing half done.

# shellcheck source=scripts/lib/cuda.bash
source "$here/lib/cuda.bash"

notice() { printf 'setup: %s\n' "$*" >&2; }
fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# --- Debian packages ---------------------------------------------------------------------------------------------

as_root() {
  if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi
}

# A newer installed version is left as it is: the pin says what to fetch where nothing is there.
debian_packages() { # file with lines "name version"
  local name version missing=() wanted=() installed
  command -v dpkg-query >/dev/null || {
    notice "no dpkg here: install the packages of $1 by this system's own means"
    return 0
  }
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p')
  while read -r name version; do
    [[ -z $name || $name == \#* ]] && continue
    grep -qxF -- "$name" <<<"$installed" || missing+=("$name=$version")
  done <"$1"
  if [[ -z $(find_pip) ]]; then missing+=("python3-pip=23.0.1+dfsg-1"); fi
  [[ ${#missing[@]} == 0 ]] && return 0
  [[ ${ENCORE_SKIP_APT:-0} == 1 ]] && fail "missing Debian packages: ${missing[*]%%=*}"
  command -v apt-get >/dev/null || fail "no apt-get here; missing packages: ${missing[*]%%=*}"

  notice "installing ${missing[*]}"
  as_root apt-get update -qq
  for name in "${missing[@]}"; do
    if apt-cache madison "${name%%=*}" | awk '{print $3}' | grep -qxF -- "${name#*=}"; then
      wanted+=("$name")
    else
      notice "${name%%=*} ${name#*=} is no longer offered; taking the current version"
      wanted+=("${name%%=*}")
    fi
  done
  # An exact pin can clash with a newer library that is installed already; then the current versions are the way out.
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}" >/dev/null ||
    {
      notice "the pinned versions do not fit together here; taking the current ones"
      as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${wanted[@]%%=*}" >/dev/null
    }
}

# --- PyPI --------------------------------------------------------------------------------------------------------

find_pip() {
  if python3 -m pip --version >/dev/null 2>&1; then echo "python3 -m pip"; fi
}

# Downloads one pinned file into the cache. pip checks the hash before it looks inside the file.
pypi_file() { # project version sha256 [pip options...]; prints the path
  local project=$1 version=$2 sha256=$3 file work
  shift 3
  for file in "$cache/downloads"/*; do
    if [[ -f $file ]] && sha256sum --status -c - <<<"$sha256  $file"; then
      printf '%s\n' "$file"
      return 0
    fi
  done
  work=$(mktemp -d "$cache/.download.XXXXXX")
  printf '%s==%s --hash=sha256:%s\n' "$project" "$version" "$sha256" >"$work/requirements.txt"
  notice "downloading $project $version"
  mkdir "$work/files"
  python3 -m pip download --quiet --no-deps --require-hashes -r "$work/requirements.txt" -d "$work/files" "$@" >&2 ||
    fail "could not download $project $version with the pinned sha256 $sha256"
  file=$(find "$work/files" -type f | head -n 1)
  mv "$file" "$cache/downloads/"
  rm -rf "$work"
  printf '%s\n' "$cache/downloads/$(basename "$file")"
}

headers_of_wheel() { # project version folder-inside name-in-cache sha256
  local project=$1 version=$2 folder=$3 name=$4 sha256=$5 wheel work
  [[ -f $cache/$name/.complete ]] && return 0
  # Named platform and Python version: the same file everywhere, so that one hash pins it. Only headers are used.
  wheel=$(pypi_file "$project" "$version" "$sha256" --only-binary=:all: --implementation cp --python-version 3.12 \
    --platform manylinux_2_28_x86_64)
  work=$(mktemp -d "$cache/.$name.XXXXXX")
  unzip -q "$wheel" "$folder/*" '*.dist-info/*' -d "$work/wheel"
  mkdir "$work/out"
  mv "$work/wheel/$folder" "$work/out/include"
  find "$work/wheel" -ipath '*license*' -type f -exec cp {} "$work/out/" \;
  install_folder "$work/out" "$name"
  rm -rf "$work"
}

# A module for the system's Python, in a folder of its own in the cache, which holds all of them: $cache/python.
python_module() { # project version sha256 (of a wheel for Python 3.10 and newer)
  local project=$1 version=$2 sha256=$3 wheel work
  [[ -f $cache/python/.$project-$version ]] && return 0
  wheel=$(pypi_file "$project" "$version" "$sha256" --only-binary=:all: --implementation cp --python-version 3.11 \
    --platform manylinux_2_17_x86_64)
  work=$(mktemp -d "$cache/.python.XXXXXX")
  mkdir "$work/out"
  if [[ -d $cache/python ]]; then cp -a "$cache/python/." "$work/out"; fi
  unzip -q -o "$wheel" -d "$work/out"
  touch "$work/out/.$project-$version"
  install_folder "$work/out" python
  rm -rf "$work"
}

# A folder of a wheel that works with any Python, such as a program and what it reads.
folder_of_wheel() { # project version folder-inside name-in-cache sha256
  local project=$1 version=$2 folder=$3 name=$4 sha256=$5 wheel work
  [[ -f $cache/$name/.complete ]] && return 0
  wheel=$(pypi_file "$project" "$version" "$sha256" --only-binary=:all: --platform manylinux_2_17_x86_64)
  work=$(mktemp -d "$cache/.$name.XXXXXX")
  unzip -q "$wheel" "$folder/*" -d "$work"
  install_folder "$work/$folder" "$name"
  rm -rf "$work"
}

install_folder() { # from name-in-cache
  chmod 755 "$1"
  touch "$1/.complete"
  rm -rf "${cache:?}/$2"
  mv "$1" "$cache/$2"
  notice "ready: $cache/$2"
}

# --- Kokkos ------------------------------------------------------------------------------------------------------

kokkos_architecture() { # CUDA compute capability without the dot
  case $1 in
    70) echo VOLTA70 ;;
    80) echo AMPERE80 ;;
    86) echo AMPERE86 ;;
    89) echo ADA89 ;;
    90) echo HOPPER90 ;;
    100) echo BLACKWELL100 ;;
    120) echo BLACKWELL120 ;;
    *) fail "ENCORE_CUDA_ARCH=$1 is not known to Kokkos 4.7.0: use 70, 80, 86, 89, 90, 100 or 120" ;;
  esac
}

# Kokkos 4.7.0 as the PyPI source distribution of pygenten carries it, patched for CUDA 13.
kokkos() { # host|cuda
  local variant=$1 name sdist work options stamp
  name=kokkos-4.7.0-$variant
  [[ $variant == cuda ]] && name=$name-sm_$cuda_arch
  [[ -f $cache/$name/.complete ]] && return 0

  sdist=$(pypi_file pygenten 0.1.5 e620f05c742905e2db705d875f1cac92ef0ed453f9e6734e9beda26cc0f9cce7 --no-binary=pygenten)
  work=$(mktemp -d "$cache/.$name.XXXXXX")
  tar -xzf "$sdist" -C "$work" --strip-components=2 pygenten-0.1.5/tpls/kokkos
  patch -s -d "$work/kokkos" -p1 <"$here/patches/kokkos-4.7.0-cuda-13.patch"

  options=(
    -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_CXX_STANDARD=20
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON
    -DBUILD_SHARED_LIBS=OFF
    -DKokkos_ENABLE_SERIAL=ON
    -DKokkos_ENABLE_OPENMP=ON
    -DKokkos_ENABLE_DEPRECATED_CODE_4=OFF
    # The mdspan based View of 4.7.0 is miscompiled by CUDA 13 as C++20: kernels then read garbage pointers.
    -DKokkos_ENABLE_IMPL_VIEW_LEGACY=ON
  )
  if [[ $variant == cuda ]]; then
    options+=(
      -DKokkos_ENABLE_CUDA=ON
      -DKokkos_ENABLE_CUDA_CONSTEXPR=ON
      "-DKokkos_ARCH_$(kokkos_architecture "$cuda_arch")=ON"
    )
  fi
  notice "building Kokkos 4.7.0 ($variant), which takes a minute or two"
  # A plain g++ also for CUDA: the launch compiler hands each file to nvcc by itself, with the right architecture.
  {
    cmake -S "$work/kokkos" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="${CXX:-g++}" \
      -DCMAKE_INSTALL_PREFIX="$cache/$name" "${options[@]}" &&
      cmake --build "$work/build" -j "$jobs" &&
      DESTDIR="$work/out" cmake --install "$work/build"
  } >"$work/log" 2>&1 || {
    tail -n 40 "$work/log" >&2
    fail "Kokkos did not build; the whole log is $work/log"
  }
  stamp=$work/out$cache/$name
  install_folder "$stamp" "$name"
  rm -rf "$work"
}
